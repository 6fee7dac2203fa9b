"""The polynomial through the last computed values, at their true spacing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from omnireuse.diffusion.reuse.forecasters.base import Combination, Forecaster, Memory
from omnireuse.diffusion.reuse.validation import field_error

__all__ = ["Polynomial", "PolynomialMemory", "lagrange_weights"]


@dataclass(frozen=True, kw_only=True)
class Polynomial(Forecaster):
    """Extrapolation of order 1 to 3; a lower order while fewer values are known.

    Source: TaylorSeer, "From Reusing to Forecasting", arXiv 2503.06923. Its finite differences assume even spacing; the
    Lagrange form used here is exact on polynomials of its order at any spacing.

    Args:
        order: degree of the polynomial, 1 to 3. Raising it follows curvature and amplifies noise; order + 1 values
            are kept.
    """

    order: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.order, int) or isinstance(self.order, bool) or not 1 <= self.order <= 3:
            raise field_error(self, "order", "be 1, 2 or 3", do="order 0 is the forecaster 'hold'")

    def start(self, branch: int = 0) -> PolynomialMemory:
        """An empty memory."""
        return PolynomialMemory(self.order)


class PolynomialMemory(Memory):
    """The last `order` + 1 values and their coordinates, oldest first.

    Args:
        order: of the polynomial.
        weights: gives each node's share in the forecast at a coordinate.
    """

    def __init__(self, order: int, weights: Callable[[Sequence[float], float], list[float]] | None = None) -> None:
        self._weights = weights or lagrange_weights
        self._nodes: deque[tuple[float, torch.Tensor]] = deque(maxlen=order + 1)

    @property
    def primed(self) -> bool:
        """Whether one value is known."""
        return bool(self._nodes)

    @property
    def last(self) -> torch.Tensor:
        """The last computed value."""
        return self._nodes[-1][1]

    @property
    def last_at(self) -> float:
        """Its coordinate."""
        return self._nodes[-1][0]

    @property
    def known_order(self) -> int:
        """The degree that the known values determine; -1 without any."""
        return len(self._nodes) - 1

    def observe(self, at: float, value: torch.Tensor) -> None:
        """Remember a value; a second value at the same coordinate replaces the first."""
        if self._nodes and self._nodes[-1][0] == at:
            self._nodes.pop()
        self._nodes.append((at, value))

    def predict(self, at: float) -> torch.Tensor:
        """The polynomial through the known values, accumulated in float32 at least."""
        if self.known_order == 0:
            return self.last
        weights = self.weights(at)
        dtype = torch.promote_types(self.last.dtype, torch.float32)
        total = self.last.to(dtype) * weights[-1]
        for weight, (_, value) in zip(weights[:-1], list(self._nodes)[:-1], strict=True):
            total.add_(value.to(dtype), alpha=weight)
        return total.to(self.last.dtype)

    def weights(self, at: float) -> list[float]:
        """The weight of each known value in the forecast at `at`, oldest first."""
        return [1.0] if self.known_order == 0 else self._weights([node for node, _ in self._nodes], at)

    @property
    def values(self) -> list[torch.Tensor]:
        """The known values, oldest first."""
        return [value for _, value in self._nodes]

    def combination(self, at: float) -> Combination:
        """The polynomial's value, weight by weight."""
        return Combination(values=self.values, table=[self.weights(at)])


def lagrange_weights(nodes: Sequence[float], at: float) -> list[float]:
    """The weight of each node's value in the interpolating polynomial at `at`; they sum to one."""
    weights = []
    for i, here in enumerate(nodes):
        weight = 1.0
        for j, other in enumerate(nodes):
            if i != j:
                weight *= (at - other) / (here - other)
        weights.append(weight)
    return weights
