"""What a search tries: a schedule with its forecaster, and how it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnireuse.diffusion.reuse.policies import FixedSchedule

__all__ = ["FITTED", "Candidate", "from_record", "to_record"]

FITTED = "fitted"
"""In place of a forecaster's name: weights that are fitted to the schedule."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A schedule with its forecaster. Equal candidates are worth the same.

    Attributes:
        steps: the steps that compute, in order, the first among them; the last too, unless weights are fitted.
        forecaster: name of the forecaster for the others, or `FITTED`.
    """

    steps: tuple[int, ...]
    forecaster: str

    def policy(self, total: int) -> FixedSchedule:
        """The schedule for runs of so many steps."""
        return FixedSchedule(steps=self.steps, compute_last=self.steps[-1] == total - 1)


def to_record(candidate: Candidate) -> dict[str, Any]:
    """The candidate as JSON holds it."""
    return {"steps": list(candidate.steps), "forecaster": candidate.forecaster}


def from_record(record: Mapping[str, Any]) -> Candidate:
    """The candidate that `to_record` wrote down; a KeyError or TypeError where it did not."""
    return Candidate(steps=tuple(record["steps"]), forecaster=record["forecaster"])
