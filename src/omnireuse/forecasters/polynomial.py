"""The polynomial through the last computed values, at their true spacing; of order 0, the last one is held."""

from __future__ import annotations

from dataclasses import dataclass

from omnireuse.base.validation import Order, check_fields
from omnireuse.forecasters.base import Forecaster, PolynomialMemory

__all__ = ["Hold", "Polynomial"]


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


@dataclass(frozen=True, kw_only=True)
class Hold(Forecaster):
    """Reuse the last computed value. On the raw output, Euler's method then takes the computed steps alone."""

    def start(self, branch: int = 0) -> PolynomialMemory:
        return PolynomialMemory(0)
