"""The last computed value is used unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from omnireuse.forecasters.base import Forecaster, PolynomialMemory

__all__ = ["Hold"]


@dataclass(frozen=True, kw_only=True)
class Hold(Forecaster):
    """Reuse the last computed value. On the raw output, Euler's method then takes the computed steps alone."""

    def start(self, branch: int = 0) -> PolynomialMemory:
        return PolynomialMemory(0)
