"""The fewest computed steps whose plan keeps a tolerance in nine of ten pictures, from trials on the measured ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from omnireuse.forecasters import Blend
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.path import OutputProducts
from omnireuse.profiles.plan import Evidence, Plan
from omnireuse.tuning.budget import Budget
from omnireuse.tuning.full_run import relative_errors
from omnireuse.tuning.trials import MeasuredCall, Shadows, Trial, Trials, Trying

__all__ = ["ToleranceTrials", "bounds", "count_for", "excess", "trials_for"]

GROWTH = 0.0
"""What plans assume of errors on their way (`Planner`): the tolerance is of the final latents."""
LARGEST_SPEEDUP = 7
"""All steps over the fewest computed steps that are tried."""
FIRST = 0.8
"""The first number of computed steps that is tried, as a share of what the untuned rule computes."""
ALWAYS = 2
"""First steps that the untuned rule computes in any case: it knows no error before."""
SLOPE = 24.0
"""Fall of the error in dB where the number of computed steps doubles, before two trials have shown it."""
LEAST_SPREAD = 4.0
"""Least standard deviation of the errors between pictures, in dB: a few pictures may be alike by chance."""
UNSEEN = 7.0
"""By how many dB the errors of other pictures exceed those of the pictures that weights were fitted on, with care."""
NINE_OF_TEN = statistics.NormalDist().inv_cdf(0.9)


class ToleranceTrials(Trying):
    """The plans that are tried for one tolerance. None computes as many steps as the untuned rule.

    The search is a regula falsi over the logarithm of the number of computed steps, with the error in dB that nine of
    ten pictures are expected to stay within.

    Args:
        strategy: the untuned rule.
        tolerance: relative L1 error of the final latents that nine of ten pictures stay within.
        noises: noise fraction at each step.
        earlier: what is known of calls of other processes.
    """

    def __init__(
        self,
        strategy: Strategy,
        tolerance: float,
        *,
        noises: tuple[float, ...],
        earlier: Sequence[OutputProducts] = (),
    ) -> None:
        super().__init__(noises, earlier)
        self._strategy, self._tolerance = strategy, tolerance
        self._untuned: list[float] = []
        self._computed = 0.0
        """Errors and computed steps of the first call under the untuned rule."""
        self._tried: dict[int, Trial] = {}

    def run(self, calls: Sequence[MeasuredCall], shadows: Shadows, *, is_whole: bool) -> None:
        """Try the untuned rule on the first call, which says where to begin. Once all pictures are measured, try plans
        as long as all shadows take no more work than the full runs."""
        if not self._untuned:
            made = shadows.follow(calls[0], self._strategy, ALWAYS)
            self._computed = ALWAYS + made.computed / calls[0].full.calls
            self._untuned = relative_errors(made.latents, calls[0].full.final)
            self.runs += made.computed / calls[0].full.calls / self._total
        if not is_whole:
            return
        replayed = min(len(call.full.path.calls) for call in calls)
        fewest, most = max(-(-self._total // LARGEST_SPEEDUP), 2), math.ceil(self._computed) - 1
        count = min(max(math.ceil(FIRST * self._computed), fewest), most)
        while fewest <= count and count not in self._tried:
            trial = Trial.of_fit(self._planned(calls, count, GROWTH), self._total)
            if self.runs + len(calls) * self._cost(trial.candidate.steps, replayed) > len(calls):
                return
            self.runs += trial.lead(calls, shadows, self._total)
            self._tried[count] = trial
            count = min(max(count_for(self._excesses()), fewest), most)

    def _excesses(self) -> dict[int, float]:
        return {count: excess(trial.errors, self._tolerance) for count, trial in self._tried.items()}

    def default_evidence(self) -> Evidence:
        """What is known of the untuned rule."""
        return Evidence(errors=tuple(self._untuned), untuned=(), runs=0.0)

    def plan(self) -> Plan | None:
        """That of the smallest number which keeps the tolerance as all larger ones do that were tried; None without."""
        _, kept = bounds(self._excesses())
        if kept is None:
            return None
        return self._tried[kept].plan()


def excess(errors: Sequence[float], tolerance: float) -> float:
    """By how many dB the error that nine of ten other pictures are expected to stay within exceeds a tolerance.

    Errors are taken to be log-normal. Their mean is as uncertain as their number makes it, and a few errors say little
    about their spread.

    Args:
        errors: of the pictures that weights were fitted on.
        tolerance: above 0.
    """
    decibels = [20 * math.log10(min(max(error, 1e-9), 1e3)) for error in errors]
    spread = max(statistics.stdev(decibels) if len(decibels) > 1 else 0.0, LEAST_SPREAD)
    margin = UNSEEN + NINE_OF_TEN * spread * math.sqrt(1 + 1 / len(decibels))
    return statistics.fmean(decibels) + margin - 20 * math.log10(tolerance)


def bounds(excesses: Mapping[int, float]) -> tuple[int | None, int | None]:
    """The largest number of computed steps that misses the tolerance, and the smallest above it; None without one."""
    missed = max((count for count, value in excesses.items() if value > 0), default=None)
    return missed, min((count for count in excesses if missed is None or count > missed), default=None)


def count_for(excesses: Mapping[int, float]) -> int:
    """The number of computed steps at which the tolerance is expected to be just kept, from what is known of others.

    Args:
        excesses: by number of computed steps, at least one.
    """
    missed, kept = bounds(excesses)
    if kept is not None and missed is not None:
        share = excesses[missed] / (excesses[missed] - excesses[kept])
        return math.ceil(missed * math.pow(kept / missed, share))
    nearest = kept if kept is not None else missed
    assert nearest is not None, "one was tried"
    # Far enough, and no further than to double or to halve.
    found = math.ceil(nearest * math.pow(2.0, min(max(excesses[nearest] / SLOPE, -1.0), 1.0)))
    return found if missed is None else max(found, missed + 1)


def trials_for(
    budget: Budget, calls: Sequence[MeasuredCall], earlier: Sequence[OutputProducts] = ()
) -> Trials | ToleranceTrials:
    """The trials of a budget on the calls that are measured so far; `earlier` is known of calls of other processes."""
    if budget.rule is not None:
        strategy = Strategy(policy=budget.rule, forecaster=Blend())
        return ToleranceTrials(strategy, budget.rule.tolerance, noises=budget.noises, earlier=earlier)
    return Trials(budget.steps, reuses=budget.reuses, noises=budget.noises, calls=calls, earlier=earlier)
