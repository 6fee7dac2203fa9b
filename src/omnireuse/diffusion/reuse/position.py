"""Where a generation stands in its schedule."""

from __future__ import annotations

from collections.abc import Sequence

from omnireuse.diffusion.reuse.noise import NoiseLevel
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["Position"]


class Position:
    """The steps of one generation, and the one under way.

    Args:
        strategy: what to do.
        levels: the noise level of each step; empty, or shorter than the run, where unknown.
        total: number of steps; None where nobody knows.
    """

    def __init__(self, strategy: Strategy, levels: Sequence[NoiseLevel], total: int | None) -> None:
        self.strategy = strategy
        self.total = total
        self.index = 0
        """The current step, counted from 0."""
        self._levels = tuple(levels)
        known = total is not None and 0 < total <= len(levels)
        known = known and all(level.sample_weight is not None for level in levels[:total])
        self.noises = tuple(level.coordinate for level in levels[:total]) if known else None
        """Share of noise at each step; None where the scheduler's algebra is not known."""

    @property
    def level(self) -> NoiseLevel:
        """The noise level of the current step; the step index stands in where the schedule is unknown."""
        if self.index < len(self._levels):
            return self._levels[self.index]
        return NoiseLevel(sigma=None, coordinate=float(self.index))

    @property
    def coordinate(self) -> float:
        """Where forecasters stand now, on the strategy's axis."""
        return float(self.index) if self.strategy.axis == "steps" else self.level.coordinate

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.total is not None and self.index >= self.total

    @property
    def schedule(self) -> frozenset[int] | None:
        """The steps that the policy computes, where it knows them ahead of the run; None where it measures, or where
        the number of steps is unknown.

        Guards may compute more: a step whose inputs changed shape computes.
        """
        return None if self.total is None else self.strategy.policy.schedule(self.total, self.noises)
