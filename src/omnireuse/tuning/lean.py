"""Lean calls of an editing model: tried with the plan that other trial runs leave, once all pictures are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from omnireuse.profiles.plan import Plan
from omnireuse.tuning.budget import SHORT_ERROR, Budget
from omnireuse.tuning.recording import relative_errors
from omnireuse.tuning.search import CandidateRecord, DueTrial, Search
from omnireuse.tuning.trials import MeasuredCall, Pausing, SessionTrials, Trials

__all__ = ["REFERENCES", "LeanSearch"]

REFERENCES = "references"
"""Among the arguments of a configuration whose calls have pictures to edit, and with which lean calls are tried."""
CANDIDATES = (0, 4, 2)
"""`Plan.full_every`, fewest full calls first."""
MOST_GROWTH = 10 ** (2 / 20)
"""What a plan's error in a measured picture may be multiplied by: 2 dB. If every step is computed, `SHORT_ERROR` is the
limit."""


class LeanSearch(Search):
    """Another search, then trial runs of lean calls on the plan that it leaves.

    Args:
        inner: the other; of a number of computed steps.
        budget: of both.
    """

    def __init__(self, inner: Search, budget: Budget) -> None:
        super().__init__(budget.noises)
        self._inner, self._budget = inner, budget
        self._left = list(CANDIDATES)
        self._errors: list[float] = []
        """With the first candidate that is left, of each picture so far."""
        self._calls = 0

    def due(self, calls: Sequence[MeasuredCall], *, is_whole: bool) -> DueTrial | None:
        """The trial run that comes next: those of the other candidates first, then those with lean calls."""
        if (due := self._inner.due(calls, is_whole=is_whole)) is not None:
            return due._replace(make=partial(self._try_other, due.make))
        plan = self._inner.decided(self._budget.untuned_steps) if is_whole else None
        # With as many calls as steps, the first is full alone.
        self._left = [each for each in self._left if plan is None or each < len(plan.steps)]
        if plan is None or not self._left or self._calls == len(calls):
            return None
        return DueTrial(len(plan.steps) / self._total, partial(self._try_lean, plan, calls))

    def _try_other(self, make: Callable[[Trials], Pausing[None]], trials: Trials) -> Pausing[None]:
        before = self._inner.runs
        yield from make(trials)
        self.runs += self._inner.runs - before

    def _try_lean(self, plan: Plan, calls: Sequence[MeasuredCall], trials: SessionTrials) -> Pausing[None]:
        call = calls[self._calls]
        made = yield from trials.lean(call, plan.strategy(self._noises), self._left[0])
        if made is None:
            self._left.clear()
            return
        self.runs += made.computed / call.full.calls / self._total
        assert plan.evidence is not None, "it was tried"
        own = plan.evidence.errors[-sum(each.full.pictures for each in calls) :][len(self._errors) :]
        errors = relative_errors(made.latents, call.full.final)
        computes_all = len(plan.steps) == self._total
        limits = [SHORT_ERROR if computes_all else MOST_GROWTH * error for error in own]
        self._errors, self._calls = [*self._errors, *errors], self._calls + 1
        if any(error > limit for error, limit in zip(errors, limits, strict=False)):
            del self._left[0]
            self._errors, self._calls = [], 0

    def plan(self) -> Plan | None:
        """The plan that evidence is for, without lean calls; None if the untuned default stays."""
        return self._inner.plan()

    def decided(self, untuned: tuple[int, ...]) -> Plan:
        """The plan to keep, with the fewest full calls that have left errors small enough."""
        plan = self._inner.decided(untuned)
        if not self._errors:
            return msgspec.structs.replace(plan, full_every=1)
        assert plan.evidence is not None, "it was tried"
        evidence = msgspec.structs.replace(plan.evidence, errors=tuple(self._errors))
        return msgspec.structs.replace(plan, full_every=self._left[0], evidence=evidence)

    def needs_another(self, calls: Sequence[MeasuredCall]) -> bool:
        """Whether all has been tried on these calls, and another one must be measured."""
        return self._inner.needs_another(calls)

    def left(self, calls: Sequence[MeasuredCall]) -> float:
        """Work that is left, in full runs; that of lean calls is not known."""
        return self._inner.left(calls) or super().left(calls)

    @property
    def kept(self) -> tuple[CandidateRecord, ...]:
        """What later processes may go on with: lean calls are tried anew."""
        return self._inner.kept
