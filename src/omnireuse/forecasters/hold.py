"""The last computed value is used unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from omnireuse.forecasters.base import Forecaster, PolynomialMemory

__all__ = ["Hold", "HoldMemory"]


@dataclass(frozen=True, kw_only=True)
class Hold(Forecaster):
    """Forecast of order 0. On the raw output it makes Euler's method the same method on the computed steps alone."""

    def start(self, branch: int = 0) -> HoldMemory:
        return HoldMemory()


class HoldMemory(PolynomialMemory):
    """The last value."""

    def __init__(self) -> None:
        super().__init__(0)
