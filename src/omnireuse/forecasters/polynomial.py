"""The polynomial through the last computed values, at their true spacing."""

from __future__ import annotations

from dataclasses import dataclass

from omnireuse.base.validation import Order, check_fields
from omnireuse.forecasters.base import Forecaster, PolynomialMemory

__all__ = ["Polynomial"]


@dataclass(frozen=True, kw_only=True)
class Polynomial(Forecaster):
    """Extrapolation of order 1 to 3; a lower order while fewer values are known.

    Source: TaylorSeer, "From Reusing to Forecasting", arXiv 2503.06923. Its finite differences assume even spacing; the
    Lagrange form used here is exact on polynomials of its order at any spacing.

    Args:
        order: degree of the polynomial, 1 to 3. Raising it follows curvature and amplifies noise; order + 1 values
            are kept.
    """

    order: Order = 1

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self, branch: int = 0) -> PolynomialMemory:
        return PolynomialMemory(self.order)
