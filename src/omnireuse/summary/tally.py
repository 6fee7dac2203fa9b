"""Sums over decisions, of one run or of several."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from omnireuse.loop.events import Decision

__all__ = ["RunRecord", "Tally"]


@dataclass
class Tally:
    """Sums over decisions.

    Attributes:
        steps, computed, reused: steps with a decision, and decisions by their kind.
        reasons: how often each reason decided, computing and reusing apart.
        errors: of the forecasts that could be compared: their number, sum and largest.
        host_seconds: of all decisions together.
    """

    steps: int = 0
    computed: int = 0
    reused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    errors: tuple[int, float, float] = (0, 0.0, 0.0)
    host_seconds: float = 0.0

    def count(self, decision: Decision) -> None:
        """Add one decision, but for its step."""
        self.computed += not decision.reused
        self.reused += decision.reused
        self.reasons[f"{'reused' if decision.reused else 'computed'} ({decision.reason})"] += 1
        self.host_seconds += decision.host_seconds
        if decision.error is not None:
            number, total, worst = self.errors
            self.errors = number + 1, total + decision.error, max(worst, decision.error)

    def add(self, other: Tally) -> None:
        """Add another's counts."""
        self.steps += other.steps
        self.computed += other.computed
        self.reused += other.reused
        self.reasons += other.reasons
        self.host_seconds += other.host_seconds
        (number, total, worst), (more, sum_of_more, worst_of_more) = self.errors, other.errors
        self.errors = number + more, total + sum_of_more, max(worst, worst_of_more)


@dataclass
class RunRecord:
    """The decisions of one run.

    Attributes:
        total: steps of the run; None where it is not known.
        step: the latest.
        has_reused: whether anything was reused.
        computed: how often each reason made a call compute.
        smallest: the smallest value that the policy compared with its threshold; None where it measured none.
        is_broken: whether its latents ended NaN or infinite.
        is_unlike: whether its steps or noise levels are not those of the profile.
        tally: of its decisions.
    """

    total: int | None = None
    step: int = -1
    has_reused: bool = False
    computed: Counter[str] = field(default_factory=Counter)
    smallest: float | None = None
    is_broken: bool = False
    is_unlike: bool = False
    tally: Tally = field(default_factory=Tally)
