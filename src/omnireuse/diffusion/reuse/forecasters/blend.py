"""A forecast between holding and extrapolating, weighted by what the last computed step has shown."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from omnireuse.diffusion.reuse.forecasters.base import Combination, Forecaster, PolynomialMemory, check_order

__all__ = ["Blend", "BlendMemory", "LearningMemory", "rows"]


@dataclass(frozen=True, kw_only=True)
class Blend(Forecaster):
    """last + w · (polynomial − last), with w fitted to the last known truth.

    Extrapolation gains much where the path is smooth and explodes where strong guidance bends it. Each computed step
    gives the best weight for the forecast of that step, w = ⟨truth − last, slope⟩ / ⟨slope, slope⟩ with
    slope = polynomial − last. Its shortfall 1 − w is the path's bend, which grows with the distance: half of it is
    expected over half the distance. The expected weight is clamped to [0, 1], and is 0 until the first fit. Each sample
    of a batch has a weight of its own.

    Cost: two reductions a computed step, no host synchronisation (w stays on the device); order + 1 values kept.

    Args:
        order: degree of the polynomial, 1 to 3.
    """

    order: int = 1

    def __post_init__(self) -> None:
        check_order(self)

    def start(self, branch: int = 0) -> BlendMemory:
        return BlendMemory(self.order)


class LearningMemory(PolynomialMemory):
    """A polynomial memory with several candidate forecasts, and the evidence that chooses between them."""

    least_values = 1
    """Values that must be known before a computed value is compared with their forecasts."""

    def __init__(self, order: int) -> None:
        super().__init__(order)
        self._evidence: torch.Tensor | None = None
        """Shape (…, B), on the values' device."""
        self._over = 1.0
        """The distance over which it was measured."""

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        learns = self._learns_at(coordinate)
        self.remember(coordinate, value, self._evidence_at(coordinate, value) if learns else None)

    def remember(self, coordinate: float, value: torch.Tensor, evidence: torch.Tensor | None) -> None:
        if evidence is not None:
            self._evidence, self._over = evidence, abs(coordinate - self.last_coordinate)
        super().observe(coordinate, value)

    def candidates(self, coordinate: float) -> Combination | None:
        if not self._learns_at(coordinate):
            return None
        return Combination(values=self.values, table=self._table(coordinate))

    def combination(self, coordinate: float) -> Combination | None:
        if self._evidence is None:
            return Combination(values=self.values, table=[self._hold()])
        return Combination(
            values=self.values,
            table=self._table(coordinate)[: len(self._evidence) if self._evidence.ndim > 1 else None],
            evidence=self._evidence,
            distance=self._distance(coordinate),
            mix=self._mix,
        )

    def _learns_at(self, coordinate: float) -> bool:
        return len(self._nodes) >= self.least_values and coordinate != self.last_coordinate

    def _distance(self, coordinate: float) -> float:
        return abs(coordinate - self.last_coordinate) / self._over

    def _hold(self) -> list[float]:
        return [0.0] * (len(self._nodes) - 1) + [1.0]

    @abstractmethod
    def _table(self, coordinate: float) -> list[list[float]]:
        """The weights of each candidate."""

    @abstractmethod
    def _evidence_at(self, coordinate: float, value: torch.Tensor) -> torch.Tensor:
        """The evidence of one computed value."""

    @staticmethod
    @abstractmethod
    def _mix(evidence: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """As `Combination.mix`."""


class BlendMemory(LearningMemory):
    """Holding and the polynomial; the evidence is 1 − w of each sample, 0 at least."""

    least_values = 2

    def predict(self, coordinate: float) -> torch.Tensor:
        last = self.last
        if self._evidence is None:
            return last
        shortfall = self._evidence.reshape(-1, *(1,) * (last.ndim - 1))
        weight = (1 - shortfall * self._distance(coordinate)).clamp_min(0.0).to(last.dtype)
        return torch.lerp(last, super().predict(coordinate), weight)

    @staticmethod
    def evidence_of(forecasts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        hold, line = (each.flatten(0, 1) for each in forecasts.unbind(1))
        return _shortfall(hold, line, values.flatten(0, 1)).reshape(values.shape[:2])

    def _evidence_at(self, coordinate: float, value: torch.Tensor) -> torch.Tensor:
        return _shortfall(self.last, super().predict(coordinate), value)

    def _table(self, coordinate: float) -> list[list[float]]:
        return [self._hold(), self.weights(coordinate)]

    @staticmethod
    def _mix(evidence: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        weight = (1 - evidence * distances[:, None]).clamp_min(0.0)
        return torch.stack((1 - weight, weight), dim=1)


def _shortfall(last: torch.Tensor, forecast: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """1 − w of each row, at least 0."""
    slope, change = rows(forecast - last), rows(value - last)
    # 0/0 where the forecast equals the last value: there is no slope to follow.
    fitted = (change * slope).sum(1) / slope.square().sum(1)
    return (1 - torch.nan_to_num(fitted, nan=0.0)).clamp_min(0.0)


def rows(value: torch.Tensor) -> torch.Tensor:
    """One row for each sample, in float32; a value of one dimension is one sample."""
    return value.float().reshape(value.shape[0] if value.ndim > 1 else 1, -1)
