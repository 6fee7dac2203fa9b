"""The order that would have been best at the last computed step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omnireuse.diffusion.reuse.forecasters.base import Combination, Forecaster
from omnireuse.diffusion.reuse.forecasters.polynomial import PolynomialMemory, lagrange_weights
from omnireuse.diffusion.reuse.validation import field_error

__all__ = ["BestOrder"]


@dataclass(frozen=True, kw_only=True)
class BestOrder(Forecaster):
    """A polynomial whose degree is chosen anew at each computed step, each sample of a batch for itself.

    Whenever a step computes, every degree from 0 up makes its forecast from the values before, and its error (in the
    squared norm) is kept. The error of degree p grows with the distance to the power p + 1, so over the distance of a
    coming forecast another degree may be best than over the one measured; the least expected error decides. Until a
    degree has been tried, 0 is held.

    Cost: one weighted sum per degree, and at a computed step one reduction each; no host synchronisation; order + 1
    values kept.

    Args:
        order: highest degree, 1 to 3.
    """

    order: int = 3

    def __post_init__(self) -> None:
        if not isinstance(self.order, int) or isinstance(self.order, bool) or not 1 <= self.order <= 3:
            raise field_error(self, "order", "be 1, 2 or 3")

    def start(self, branch: int = 0) -> _BestOrderMemory:
        """An empty memory."""
        return _BestOrderMemory(self.order)


class _BestOrderMemory(PolynomialMemory):
    def __init__(self, order: int) -> None:
        super().__init__(order)
        self._errors: torch.Tensor | None = None
        """Squared error of each degree and sample, shape (degrees, samples), on the values' device."""
        self._over = 1.0
        """The distance over which they were measured."""

    def observe(self, at: float, value: torch.Tensor) -> None:
        """Remember a value, and first let every degree try to foretell it."""
        if self._nodes and self.last_at != at:
            errors = [_rows(forecast - value).square().sum(1) for forecast in self._forecasts(at)]
            # Not a number is never best.
            self._errors = torch.nan_to_num(torch.stack(errors), nan=torch.inf)
            self._over = abs(at - self.last_at)
        super().observe(at, value)

    def remember(self, at: float, value: torch.Tensor, evidence: torch.Tensor | None) -> None:
        """`observe`, with the errors measured already."""
        if evidence is not None:
            self._errors, self._over = evidence, abs(at - self.last_at)
        super().observe(at, value)

    @staticmethod
    def evidence_of(forecasts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Squared error of each degree and sample."""
        return torch.nan_to_num((forecasts - values[:, None]).float().square().sum(-1), nan=torch.inf)

    def candidates(self, at: float) -> Combination | None:
        """The forecast of every degree."""
        if not self._nodes or self.last_at == at:
            return None
        return Combination(values=self.values, table=self._table(at))

    def combination(self, at: float) -> Combination:
        """The forecasts of all degrees that have been tried; the least expected error chooses."""
        if self._errors is None:
            return Combination(values=self.values, table=[[0.0] * self.known_order + [1.0]])
        return Combination(
            values=self.values,
            table=self._table(at)[: len(self._errors)],
            evidence=self._errors,
            distance=abs(at - self.last_at) / self._over,
            mix=_chosen,
        )

    def _table(self, at: float) -> list[list[float]]:
        nodes = [node for node, _ in self._nodes]
        return [
            [0.0] * (len(nodes) - degree - 1) + lagrange_weights(nodes[-degree - 1 :], at)
            for degree in range(len(nodes))
        ]

    def predict(self, at: float) -> torch.Tensor:
        """Each sample's polynomial of the degree that is expected to be best; the lowest among equals."""
        if self._errors is None:
            return self.last
        ratio = abs(at - self.last_at) / self._over
        expected = [error * ratio ** (2 * degree + 2) for degree, error in enumerate(self._errors)]
        chosen = torch.stack(expected).argmin(0)
        forecasts = torch.stack(self._forecasts(at))
        if self.last.ndim <= 1:
            return forecasts.index_select(0, chosen)[0]
        chosen = chosen.reshape(1, -1, *(1,) * (self.last.ndim - 1))
        return forecasts.gather(0, chosen.expand(1, *self.last.shape))[0]

    def _forecasts(self, at: float) -> list[torch.Tensor]:
        nodes, values = zip(*self._nodes, strict=True)
        dtype = torch.promote_types(self.last.dtype, torch.float32)
        found = []
        for degree in range(len(nodes)):
            weights = lagrange_weights(nodes[-degree - 1 :], at)
            terms = [value.to(dtype) * weight for weight, value in zip(weights, values[-degree - 1 :], strict=True)]
            found.append(torch.stack(terms).sum(0).to(self.last.dtype) if degree else self.last)
        return found


def _chosen(errors: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    degrees = torch.arange(errors.shape[1], device=errors.device)
    expected = errors * (distances[:, None] ** (2 * degrees + 2))[:, :, None]
    return torch.zeros_like(errors).scatter_(1, expected.argmin(1, keepdim=True), 1.0)


def _rows(value: torch.Tensor) -> torch.Tensor:
    return value.float().reshape(value.shape[0] if value.ndim > 1 else 1, -1)
