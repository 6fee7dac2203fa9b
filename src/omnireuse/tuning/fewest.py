"""The fewest computed steps whose plan keeps a tolerance or a quality in nine of ten pictures, from trials."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate

from omnireuse import messages
from omnireuse.errors import UnsupportedModelError
from omnireuse.forecasters import Blend
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.path import OutputProducts
from omnireuse.planning.planner import Planner
from omnireuse.profiles.coverage import bound_of_few
from omnireuse.profiles.plan import Plan
from omnireuse.tuning.budget import JUDGED, Budget
from omnireuse.tuning.recording import relative_errors
from omnireuse.tuning.search import Candidate, CandidateRecord, DueTrial, GivenSteps, Search
from omnireuse.tuning.trials import MeasuredCall, Pausing, Trials

__all__ = ["FewestSteps", "bounds", "count_for", "search_for"]

GROWTHS = {"tolerance": 0.0, "quality": 2.0}
"""What plans assume of errors on their way (`Planner`): a tolerance is of the final latents, a quality of pictures."""
GIVEN_GROWTHS = (0.0, 2.0)
"""The same for a given number of steps: trials decide (``python -m bench tune``)."""
LARGEST_SPEEDUP = 7
"""All steps over the fewest computed steps that are tried."""
FIRST = {"tolerance": 0.8, "quality": 0.5}
"""The first number of computed steps that is tried, as a share of what is computed without a plan."""
FURTHER = {"tolerance": 1, "quality": 2}
"""Least number of steps more after a miss: without a plan a quality computes every step, and tries are few."""
ALWAYS = 2
"""First steps that the untuned rule computes in any case: it knows no error before."""
FITTED_TO = 3
"""Pictures that plans and weights are made from; those after them judge."""
SLOPE, TAIL_SLOPE = 24.0, 12.0
"""Fall of the error in dB if the number of computed steps doubles, before two trials have shown it; and the least
that is expected of the worst pictures, after a miss."""


class FewestSteps(Search):
    """The plans that are tried for one tolerance or quality. Each has fewer computed steps than the untuned rule.

    A plan keeps it if `bound_of_few` does, of what the plan leaves in pictures that nothing was fitted to: of the
    error of their final latents for a tolerance, of their PSNR for a quality. The numbers of steps come from a regula
    falsi over their logarithm.

    Args:
        budget: with a tolerance or a quality.
        earlier: what is known of calls of other processes.
    """

    def __init__(self, budget: Budget, earlier: Sequence[OutputProducts] = ()) -> None:
        super().__init__(budget.noises)
        self._earlier = earlier
        aim, name = budget.aim, budget.aim.name
        self._rule, self._quality, self._value = budget.rule, aim.quality, aim.value
        self._growth, self._share, self._further = GROWTHS[name], FIRST[name], FURTHER[name]
        self._computed = float(self._total)
        """Computed steps without a plan."""
        self._tried: dict[int, Candidate] = {}
        self._current: Candidate | None = None

    def due(self, calls: Sequence[MeasuredCall], *, is_whole: bool) -> DueTrial | None:
        """First, how many steps are computed without a plan. The first plan follows the pictures as they come, unless
        it misses in those that it was fitted to; once all are measured, others do. All trial runs take no more work
        than the full runs."""
        if self._rule is not None and not self._untuned:
            return DueTrial(1.0, partial(self._follow_rule, calls[0]))
        if self._quality is not None and len(self._pictures) < len(calls):
            return DueTrial(0.0, partial(self._look, calls))
        candidate = self._current
        is_missed = candidate is not None and self._misses_fitted(candidate)
        if candidate is None or candidate.calls == len(calls) or is_missed:
            is_planned = sum(call.full.pictures for call in calls) >= FITTED_TO
            if not is_whole and not (is_missed or (candidate is None and is_planned)):
                return None
            if candidate is not None:
                self._tried[len(candidate.steps)] = candidate
            candidate = self._current = self._next(calls)
        if candidate is None:
            return None
        cost = candidate.cost(calls[candidate.calls :][:1])
        return DueTrial(cost, partial(self._try, candidate, calls, candidate.calls))

    def _next(self, calls: Sequence[MeasuredCall]) -> Candidate | None:
        """The plan to try next; None if the search has ended, or would take too much work."""
        fewest, most = max(-(-self._total // LARGEST_SPEEDUP), 2), math.ceil(self._computed) - 1
        wanted = count_for(self._excesses(), self._further) if self._tried else math.ceil(self._share * self._computed)
        count = min(max(wanted, fewest), most)
        if fewest > count or count in self._tried:
            return None
        products = [*self._earlier, *(call.full.products for call in _fitted_to(calls))]
        steps = Planner(products, self._noises, fewest=count, growth=self._growth).best(count)
        fits = all(call.full.unfit is None for call in calls)
        candidate = (
            Candidate.of_fit(steps, self._total, FITTED_TO) if fits else Candidate(steps=steps, total=self._total)
        )
        runs = max(len(calls), -(-JUDGED // calls[0].full.pictures), 2)
        return None if self.runs + runs * candidate.cost(calls) > runs else candidate

    def _follow_rule(self, call: MeasuredCall, trials: Trials) -> Pausing[None]:
        assert self._rule is not None, "a tolerance is asked for"
        strategy = Strategy(policy=self._rule, forecaster=Blend())
        made = yield from trials.follow(call, strategy, ALWAYS)
        self._computed = ALWAYS + made.computed / call.full.calls
        self._untuned = relative_errors(made.latents, call.full.final)
        self.runs += made.computed / call.full.calls / self._total

    def _see(self, calls: Sequence[MeasuredCall], trials: Trials) -> None:
        if self._quality is not None:
            super()._see(calls, trials)

    def _look(self, calls: Sequence[MeasuredCall], trials: Trials) -> Pausing[None]:
        self._see(calls, trials)
        self._untuned = [0.0] * sum(call.full.pictures for call in calls)
        if any(each is None for each in self._pictures.values()):
            raise UnsupportedModelError(messages.NO_PICTURES_MADE)
        yield from ()

    def _excesses(self) -> dict[int, float]:
        return {count: self._excess(candidate) for count, candidate in self._tried.items()}

    def _excess(self, candidate: Candidate) -> float:
        """By how many dB nine of ten other pictures are expected to miss it; negative if they exceed it."""
        if self._quality is not None:
            return self._quality - bound_of_few(candidate.closeness[candidate.fitted :] or candidate.closeness)
        errors = [-_decibels(error) for error in candidate.errors[candidate.fitted :] or candidate.errors]
        return -_decibels(self._value) - bound_of_few(errors)

    def _misses_fitted(self, candidate: Candidate) -> bool:
        """Whether a plan is missed in the very pictures that it was fitted to, so that others need not judge it."""
        return FITTED_TO <= candidate.fitted == len(candidate.errors) and self._excess(candidate) > 0

    def plan(self) -> Plan | None:
        """That of the smallest number which keeps it as all larger ones do that were tried; None without."""
        _, kept = bounds(self._excesses())
        if kept is None:
            return None
        found = self._tried[kept]
        return found.plan() if self._quality is None else found.plan(closeness=tuple(found.closeness[found.fitted :]))


def search_for(
    budget: Budget,
    calls: Sequence[MeasuredCall],
    earlier: Sequence[OutputProducts],
    pictures: int,
    kept: Sequence[CandidateRecord],
) -> Search:
    """The search for a budget; arguments as of the two searches. Once nothing is due there, `LeanSearch` goes on."""
    if budget.aim:
        return FewestSteps(budget, earlier)
    products, count = [*earlier, *(call.full.products for call in calls)], len(budget.steps)
    planners = (Planner(products, budget.noises, fewest=count, growth=each) for each in GIVEN_GROWTHS if not kept)
    return GivenSteps(budget, calls, [each.best(count) for each in planners], pictures, kept)


def _fitted_to(calls: Sequence[MeasuredCall]) -> Sequence[MeasuredCall]:
    """The first calls, with as many pictures as plans and weights are made from."""
    pictures = list(accumulate(call.full.pictures for call in calls))
    return calls[: bisect_left(pictures, FITTED_TO) + 1]


def _decibels(error: float) -> float:
    return 20 * math.log10(min(max(error, 1e-9), 1e3))


def bounds(excesses: Mapping[int, float]) -> tuple[int | None, int | None]:
    """The largest number of computed steps that misses, and the smallest above it that keeps; None without one."""
    missed = max((count for count, value in excesses.items() if value > 0), default=None)
    return missed, min((count for count in excesses if missed is None or count > missed), default=None)


def count_for(excesses: Mapping[int, float], further: int = 1) -> int:
    """The number of computed steps that is expected to keep it just so, from what is known of others.

    Args:
        excesses: by number of computed steps, at least one.
        further: the least number of steps more after a miss alone.
    """
    missed, kept = bounds(excesses)
    if kept is not None and missed is not None:
        share = excesses[missed] / (excesses[missed] - excesses[kept])
        return math.ceil(missed * math.pow(kept / missed, share))
    nearest = kept if kept is not None else missed
    assert nearest is not None, "one was tried"
    # Far enough, and no further than to double or to halve.
    slope = SLOPE if missed is None else TAIL_SLOPE
    found = math.ceil(nearest * math.pow(2.0, min(max(excesses[nearest] / slope, -1.0), 1.0)))
    return found if missed is None else max(found, missed + further)
