"""A candidate of a search: a schedule with its forecaster."""

from __future__ import annotations

from omnireuse.base.records import Record
from omnireuse.policies import Steps

__all__ = ["FITTED", "Candidate", "Scores"]

FITTED = "fitted"
"""In place of a forecaster's name: weights that are fitted to the schedule."""

Scores = tuple[float, ...]
"""PSNR in dB of each prompt to its full run."""


class Candidate(Record, frozen=True, kw_only=True):
    """A schedule with its forecaster. Equal candidates have equal scores.

    Attributes:
        steps: the steps that compute, in order, with the first.
        forecaster: name of the forecaster for the other steps, or `FITTED`.
    """

    steps: tuple[int, ...]
    forecaster: str

    @property
    def steps_before_gap(self) -> int:
        """Number of computed steps before the first reused one."""
        return next((place for place, step in enumerate(self.steps) if step != place), len(self.steps))

    def cost(self, total: int, replayed: int) -> float:
        """Full runs that a run of `total` steps takes if calls before the first gap, at most `replayed`, are known."""
        return (len(self.steps) - min(self.steps_before_gap, replayed)) / total

    def policy(self, total: int) -> Steps:
        """The schedule for runs of `total` steps."""
        return Steps(steps=self.steps, compute_last=self.steps[-1] == total - 1)
