"""The place of a run in its schedule: the step that it is at, and the noise level of the model's next call."""

from __future__ import annotations

from collections.abc import Sequence

from omnireuse.forecasters.gap import Gap
from omnireuse.noise.parametrization import NoiseLevel

__all__ = ["Position"]


class Position:
    """The place of a run, at its first step to begin with.

    Args:
        levels: noise level of each step, as far as they are known.
        total: number of steps; None where it is not known.
        axis: what coordinates measure, "noise" or "steps".
    """

    def __init__(self, levels: Sequence[NoiseLevel], total: int | None, axis: str) -> None:
        self.total = total
        self._levels, self._axis = tuple(levels), axis
        known = self._levels[:total] if total and total <= len(levels) else ()
        is_known = bool(known) and all(level.sample_weight is not None for level in known)
        self.noises = tuple(level.coordinate for level in known) if is_known else None
        """Noise fraction at each step; None where the scheduler's algebra is not known."""
        self.is_flow = is_known and all(level.flow_scale is not None for level in known)
        """Whether velocities follow from x0 at each step."""
        self.move_to(0)

    def move_to(self, index: int) -> None:
        """Go to a step, counted from 0."""
        self.index = index
        is_known = index < len(self._levels)
        self.call_at(self._levels[index] if is_known else NoiseLevel(sigma=None, coordinate=float(index)))

    def call_at(self, level: NoiseLevel) -> None:
        """Until the step is over, the model is called at this noise level, as solvers do between two steps."""
        self.level = level
        """The noise level at which the model is called."""
        self.coordinate = self._coordinate_of(self.index, level)
        """That level on the axis."""

    def gap_since(self, first: int, target: str) -> Gap | None:
        """The steps from `first` to this one, where the solver's step is known; None for no step."""
        if first == self.index or self.index >= len(self._levels):
            return None
        levels = self._levels[first : self.index + 1]
        coordinates = [self._coordinate_of(first + place, level) for place, level in enumerate(levels[:-1])]
        steps = [level.step if target == "x0" else level.velocity_step for level in levels]
        return Gap.between(target, coordinates, steps)

    def _coordinate_of(self, index: int, level: NoiseLevel) -> float:
        return float(index) if self._axis == "steps" else level.coordinate
