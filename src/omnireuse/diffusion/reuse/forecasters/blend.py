"""Between holding and extrapolating, by a weight that the last computed step has earned."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omnireuse.diffusion.reuse.forecasters.base import Combination, Forecaster, Memory
from omnireuse.diffusion.reuse.forecasters.polynomial import PolynomialMemory
from omnireuse.diffusion.reuse.validation import field_error

__all__ = ["Blend", "BlendMemory"]


@dataclass(frozen=True, kw_only=True)
class Blend(Forecaster):
    """last + w · (polynomial − last), with w fitted to the last known truth.

    A forecast of order ≥ 1 is worth much where the path is smooth and explodes where strong guidance bends it.
    Whenever a step computes, the weight that would have been best is known at no cost:
    w = ⟨truth − last, slope⟩ / ⟨slope, slope⟩ with slope = polynomial − last.
    What it falls short of 1 by is the path's bend, which grows with the distance: over half the distance that it was
    fitted over, half of that is expected. The weight so expected is clamped to [0, 1]. Until the first fit it is 0: the
    order must be earned. Each sample of a batch has a weight of its own, so it gets the same forecast in any company.

    Cost: two reductions a computed step, no host synchronisation (w stays on the device); order + 1 values kept.

    Args:
        order: degree of the polynomial, 1 to 3.
    """

    order: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.order, int) or isinstance(self.order, bool) or not 1 <= self.order <= 3:
            raise field_error(self, "order", "be 1, 2 or 3")

    def start(self, branch: int = 0) -> BlendMemory:
        """An empty memory."""
        return BlendMemory(self.order)


class BlendMemory(Memory):
    """A path of known values, and the weight that its slope has earned."""

    def __init__(self, order: int) -> None:
        self._path = PolynomialMemory(order)
        self._shortfall: torch.Tensor | None = None
        """1 − w of each sample, 0 at least."""
        self._over = 1.0
        """The distance over which it was fitted."""

    @property
    def primed(self) -> bool:
        """Whether one value is known."""
        return self._path.primed

    def observe(self, at: float, value: torch.Tensor) -> None:
        """Remember a value, and first fit the weight to it."""
        if self._learns_at(at):
            last = self._path.last
            self._learn(at, _shortfall(last, self._path.predict(at), value), value)
        self._path.observe(at, value)

    def _learns_at(self, at: float) -> bool:
        return self._path.known_order >= 1 and at != self._path.last_at

    def _learn(self, at: float, shortfall: torch.Tensor, value: torch.Tensor) -> None:
        self._shortfall = shortfall.reshape(-1, *(1,) * (value.ndim - 1))
        self._over = abs(at - self._path.last_at)

    def predict(self, at: float) -> torch.Tensor:
        """Between the last value and the polynomial, each sample by its weight."""
        if self._shortfall is None:
            return self._path.last
        distance = abs(at - self._path.last_at) / self._over
        weight = (1 - self._shortfall * distance).clamp_min(0.0).to(self._path.last.dtype)
        return torch.lerp(self._path.last, self._path.predict(at), weight)

    def combination(self, at: float) -> Combination:
        """Holding and the polynomial, mixed by the weight."""
        hold = [0.0] * self._path.known_order + [1.0]
        if self._shortfall is None:
            return Combination(values=self._path.values, table=[hold])
        return Combination(
            values=self._path.values,
            table=[hold, self._path.weights(at)],
            evidence=self._shortfall.flatten(),
            distance=abs(at - self._path.last_at) / self._over,
            mix=_mix,
        )

    def candidates(self, at: float) -> Combination | None:
        """Holding and the polynomial, once there is a slope."""
        if not self._learns_at(at):
            return None
        hold = [0.0] * self._path.known_order + [1.0]
        return Combination(values=self._path.values, table=[hold, self._path.weights(at)])

    @staticmethod
    def evidence_of(forecasts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """What each sample's weight falls short of 1 by."""
        hold, line = (each.flatten(0, 1) for each in forecasts.unbind(1))
        return _shortfall(hold, line, values.flatten(0, 1)).reshape(values.shape[:2])

    def remember(self, at: float, value: torch.Tensor, evidence: torch.Tensor | None) -> None:
        """`observe`, with the weight fitted already."""
        if evidence is not None:
            self._learn(at, evidence, value)
        self._path.observe(at, value)


def _shortfall(last: torch.Tensor, forecast: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """1 − w of each row, at least 0."""
    slope, change = _rows(forecast - last), _rows(value - last)
    # 0/0 where the forecast stood still: nothing to follow.
    fitted = (change * slope).sum(1) / slope.square().sum(1)
    return (1 - torch.nan_to_num(fitted, nan=0.0)).clamp_min(0.0)


def _mix(shortfall: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    weight = (1 - shortfall * distances[:, None]).clamp_min(0.0)
    return torch.stack((1 - weight, weight), dim=1)


def _rows(value: torch.Tensor) -> torch.Tensor:
    return value.float().reshape(value.shape[0] if value.ndim > 1 else 1, -1)
