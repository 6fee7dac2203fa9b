"""The order that would have been best at the last computed step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omnireuse.forecasters.base import Forecaster, check_order, lagrange_weights
from omnireuse.forecasters.blend import LearningMemory, rows

__all__ = ["BestOrder"]


@dataclass(frozen=True, kw_only=True)
class BestOrder(Forecaster):
    """A polynomial whose degree is chosen anew at each computed step, for each sample of a batch.

    At each computed step every degree from 0 up makes its forecast from the values before, and its squared error is
    kept. The error of degree p grows with the distance to the power p + 1, so it is rescaled to the distance of a
    coming forecast; the least expected error decides. Until a degree has been tried, 0 is used.

    Cost: one weighted sum per degree, and at a computed step one reduction each; no host synchronisation; order + 1
    values kept.

    Args:
        order: highest degree, 1 to 3.
    """

    order: int = 3

    def __post_init__(self) -> None:
        check_order(self)

    def start(self, branch: int = 0) -> _BestOrderMemory:
        return _BestOrderMemory(self.order)


class _BestOrderMemory(LearningMemory):
    """The evidence is the squared error of each degree and sample, shape (degrees, B)."""

    def predict(self, coordinate: float) -> torch.Tensor:
        if self._evidence is None:
            return self.last
        ratio = self._distance(coordinate)
        expected = [error * ratio ** (2 * degree + 2) for degree, error in enumerate(self._evidence)]
        chosen = torch.stack(expected).argmin(0)
        forecasts = torch.stack(self._forecasts(coordinate))
        if self.last.ndim <= 1:
            return forecasts.index_select(0, chosen)[0]
        chosen = chosen.reshape(1, -1, *(1,) * (self.last.ndim - 1))
        return forecasts.gather(0, chosen.expand(1, *self.last.shape))[0]

    @staticmethod
    def evidence_of(forecasts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.nan_to_num((forecasts - values[:, None]).float().square().sum(-1), nan=torch.inf)

    def _evidence_at(self, coordinate: float, value: torch.Tensor) -> torch.Tensor:
        errors = [rows(forecast - value).square().sum(1) for forecast in self._forecasts(coordinate)]
        # Not a number is never best.
        return torch.nan_to_num(torch.stack(errors), nan=torch.inf)

    def _table(self, coordinate: float) -> list[list[float]]:
        nodes = [node for node, _ in self._nodes]
        return [
            [0.0] * (len(nodes) - degree - 1) + lagrange_weights(nodes[-degree - 1 :], coordinate)
            for degree in range(len(nodes))
        ]

    def _forecasts(self, coordinate: float) -> list[torch.Tensor]:
        dtype, found = torch.promote_types(self.last.dtype, torch.float32), [self.last]
        for degree, weights in enumerate(self._table(coordinate)[1:], start=1):
            pairs = list(zip(weights, self.values, strict=True))[-degree - 1 :]
            terms = [value.to(dtype) * weight for weight, value in pairs]
            found.append(torch.stack(terms).sum(0).to(self.last.dtype))
        return found

    @staticmethod
    def _mix(evidence: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        errors = evidence[:, 0]
        degrees = torch.arange(errors.shape[1], device=errors.device)
        expected = errors * (distances[:, None] ** (2 * degrees + 2))[:, :, None]
        return torch.zeros_like(errors).scatter_(1, expected.argmin(1, keepdim=True), 1.0)
