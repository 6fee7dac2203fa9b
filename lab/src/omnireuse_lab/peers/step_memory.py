"""A memory of every step, for forecasts that take their own forecasts for values that were not computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

import omnireuse

__all__ = ["StepMemory"]


class StepMemory(omnireuse.Memory):
    """Values of the last steps, computed or forecast; coordinates are step numbers.

    Args:
        forecast: (values of the steps before it, oldest first; step) -> its value.
        keep: how many values are kept after an observation.

    Attributes:
        values: oldest first.
    """

    def __init__(self, forecast: Callable[[Sequence[torch.Tensor], int], torch.Tensor], keep: int) -> None:
        self._forecast, self._keep = forecast, keep
        self.values: list[torch.Tensor] = []
        self._first = 0  # step of the first value

    @property
    def primed(self) -> bool:
        return bool(self.values)

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        """Remember a computed value, and forecasts for the steps before it that were not computed."""
        self._reach(round(coordinate))
        self.values.append(value)
        over = max(len(self.values) - self._keep, 0)
        self.values, self._first = self.values[over:], self._first + over

    def predict(self, coordinate: float) -> torch.Tensor:
        self._reach(round(coordinate))
        return self._forecast(self.values, round(coordinate))

    def _reach(self, step: int) -> None:
        """Know every step before this one, and none after it."""
        if not self.values:
            self._first = step
        del self.values[max(step - self._first, 0) :]
        while self.values and self._first + len(self.values) < step:
            self.values.append(self._forecast(self.values, self._first + len(self.values)))
