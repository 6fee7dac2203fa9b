"""One configuration that is tuned: what was measured of it, what is tried, what was decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omnireuse.loop.strategy import Strategy
from omnireuse.planning.path import OutputProducts
from omnireuse.profiles.profile import Profile
from omnireuse.summary.tuning import Tuning
from omnireuse.tuning.budget import Budget
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.ledger import PRICE, Work, work_of
from omnireuse.tuning.trials import MeasuredCall, Trying

__all__ = ["Entry"]


@dataclass(eq=False)
class Entry:
    """One configuration with one number of computed steps.

    Attributes:
        pace: calls of the denoiser in each step.
        strategy: of the plan; None where the untuned default serves.
        earlier: what is known of calls that cannot be made again: of earlier processes, of other numbers of computed
            steps, or set aside.
        budgets: numbers of computed steps that the configuration was asked for.
        calls: measured here, from which shadows are made.
        spent: work of the shadows since measuring began.
        last: number of the latest picture.
        begun, seconds: when the measured picture has begun, and how long the latest one took.
    """

    configuration: Configuration
    budget: Budget
    tuning: Tuning
    pace: float = 1.0
    strategy: Strategy | None = None
    profile: Profile | None = None
    earlier: list[OutputProducts] = field(default_factory=list)
    budgets: frozenset[int] = frozenset()
    calls: list[MeasuredCall] = field(default_factory=list)
    trials: Trying | None = None
    spent: Work = field(default_factory=lambda: work_of(0, 0))
    failures: int = 0
    last: int = 0
    begun: float = 0.0
    seconds: float = 0.0
    lock: Any = None
    is_busy: bool = False

    @property
    def products(self) -> list[OutputProducts]:
        """What is known of the outputs of full runs, one for each call."""
        return [*self.earlier, *(call.full.products for call in self.calls)]

    @property
    def work(self) -> Work:
        """Work of a picture where every step computes."""
        return work_of(self.pace * len(self.budget.noises), self.budget.elements)

    @property
    def share(self) -> float:
        """The share of the steps that compute where the picture is not measured."""
        plan = None if self.profile is None or self.strategy is None else self.budget.plan_of(self.profile.plans)
        return len(self.budget.untuned_steps if plan is None else plan.steps) / len(self.budget.noises)

    @property
    def expected_share(self) -> float:
        """The share of the steps that is expected to compute in the pictures after this one."""
        return min(self.share, self.budget.expected_share)

    @property
    def waits(self) -> str:
        """Why measuring waits where the ledger does not allow more."""
        return f"all work stays within {PRICE:g} times that without reuse from picture {self.budget.settled} on"

    @property
    def is_whole(self) -> bool:
        """Whether all pictures are measured, and nothing is decided. Pictures of one call do not judge each other."""
        is_judged = not self.budget.aim or len(self.calls) > 1
        return self.tuning.state == "measuring" and self.tuning.pictures >= self.tuning.wanted and is_judged

    def drop(self) -> None:
        """Drop the values that were measured."""
        self.calls, self.trials = [], None

    def release(self) -> None:
        """Let other processes measure."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None
