"""The last computed value stands in, unchanged."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omnireuse.diffusion.reuse.forecasters.base import Combination, Forecaster, Memory

__all__ = ["Hold", "HoldMemory"]


@dataclass(frozen=True, kw_only=True)
class Hold(Forecaster):
    """Forecast of order 0. On the raw output it makes Euler's method the same method on the computed steps alone."""

    def start(self, branch: int = 0) -> HoldMemory:
        """An empty memory."""
        return HoldMemory()


class HoldMemory(Memory):
    """The last value."""

    def __init__(self) -> None:
        self._last: torch.Tensor | None = None

    @property
    def primed(self) -> bool:
        """Whether a value is known."""
        return self._last is not None

    def observe(self, at: float, value: torch.Tensor) -> None:
        """Keep this value instead."""
        self._last = value

    def predict(self, at: float) -> torch.Tensor:
        """The last value, wherever."""
        assert self._last is not None
        return self._last

    def combination(self, at: float) -> Combination:
        """The last value, once."""
        return Combination(values=[self.predict(at)], table=[[1.0]])
