"""The fewest computed steps whose plan keeps a tolerance or a quality in nine of ten pictures, from trials."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from omnireuse.errors import UnsupportedModelError
from omnireuse.forecasters import Blend
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.path import OutputProducts
from omnireuse.profiles.plan import Plan
from omnireuse.tuning.budget import Budget
from omnireuse.tuning.full_run import relative_errors
from omnireuse.tuning.trials import MeasuredCall, Pausing, Shadows, Trial, Try, Trying, whole

__all__ = ["FewestSteps", "bounds", "count_for", "excess", "shortfall"]

GROWTHS = {"tolerance": 0.0, "quality": 2.0}
"""What plans assume of errors on their way (`Planner`): a tolerance is of the final latents, a quality of pictures."""
LARGEST_SPEEDUP = 7
"""All steps over the fewest computed steps that are tried."""
FIRST = {"tolerance": 0.8, "quality": 0.5}
"""The first number of computed steps that is tried, as a share of what is computed without a plan."""
FURTHER = {"tolerance": 1, "quality": 2}
"""Least number of steps more after a miss: without a plan a quality computes every step, and tries are few."""
ALWAYS = 2
"""First steps that the untuned rule computes in any case: it knows no error before."""
SLOPE = 24.0
"""Fall of the error in dB where the number of computed steps doubles, before two trials have shown it."""
LEAST_SPREAD = 4.0
"""Least standard deviation of the errors between pictures, in dB: a few pictures may be alike by chance."""
UNSEEN = 7.0
"""By how many dB the errors of other pictures exceed those of the pictures that weights were fitted on, with care."""
MARGIN = 11.0
"""By how many dB nine of ten pictures stay below the middle one of many (``python -m bench quality``)."""


class FewestSteps(Trying):
    """The plans that are tried for one tolerance or quality. None computes as many steps as the untuned rule does.

    It is a regula falsi over the logarithm of the number of computed steps, with the error in dB that nine of ten
    pictures are expected to stay within: of the final latents for a tolerance, of the pictures for a quality.

    Args:
        budget: with a tolerance or a quality.
        earlier: what is known of calls of other processes.
    """

    def __init__(self, budget: Budget, earlier: Sequence[OutputProducts] = ()) -> None:
        super().__init__(budget.noises, earlier)
        self._rule, self._quality = budget.rule, budget.quality
        ((name, self._value),) = budget.aim.items()
        self._growth, self._share, self._further = GROWTHS[name], FIRST[name], FURTHER[name]
        self._computed = float(self._total)
        """Computed steps without a plan."""
        self._tried: dict[int, Trial] = {}
        self._trial: Trial | None = None
        """The one that is being tried."""

    def due(self, calls: Sequence[MeasuredCall], *, is_whole: bool) -> Try | None:
        """First how many steps compute without a plan. Once all pictures are measured, plans as long as all shadows
        take no more work than the full runs."""
        if self._rule is not None and not self._untuned:
            return Try("the untuned default", 1.0, partial(self._follow_rule, calls[0]))
        if self._quality is not None and len(self._pictures) < len(calls):
            return Try("no plan", 0.0, partial(self._look, calls))
        if not is_whole:
            return None
        if self._trial is None or self._trial.calls == len(calls):
            if self._trial is not None:
                self._tried[len(self._trial.steps)] = self._trial
            self._trial = self._next(calls)
        if self._trial is None:
            return None
        words = f"a plan of {len(self._trial.steps)} computed steps"
        return Try(words, self._trial.cost(calls[self._trial.calls :][:1]), partial(self._try, self._trial, calls))

    def _next(self, calls: Sequence[MeasuredCall]) -> Trial | None:
        """The plan to try next; None where the search has ended, or would take too much work."""
        fewest, most = max(-(-self._total // LARGEST_SPEEDUP), 2), math.ceil(self._computed) - 1
        wanted = count_for(self._excesses(), self._further) if self._tried else math.ceil(self._share * self._computed)
        count = min(max(wanted, fewest), most)
        if fewest > count or count in self._tried:
            return None
        steps, fits = self._planned(calls, count, self._growth), all(call.full.unfit is None for call in calls)
        trial = Trial.of_fit(steps, self._total) if fits else Trial(steps=steps, total=self._total)
        return None if self.runs + len(calls) * trial.cost(calls) > len(calls) else trial

    def _follow_rule(self, call: MeasuredCall, shadows: Shadows) -> Pausing[None]:
        assert self._rule is not None, "a tolerance is asked for"
        strategy = Strategy(policy=self._rule, forecaster=Blend())
        made = yield from whole(shadows.follow(call, strategy, ALWAYS))
        self._computed = ALWAYS + made.computed / call.full.calls
        self._untuned = relative_errors(made.latents, call.full.final)
        self.runs += made.computed / call.full.calls / self._total

    def _see(self, calls: Sequence[MeasuredCall], shadows: Shadows) -> None:
        if self._quality is not None:
            super()._see(calls, shadows)

    def _look(self, calls: Sequence[MeasuredCall], shadows: Shadows) -> Pausing[None]:
        self._see(calls, shadows)
        self._untuned = [0.0] * sum(call.full.pictures for call in calls)
        if any(each is None for each in self._pictures):
            raise UnsupportedModelError(
                "a quality is one of pictures, and the call returns none that can be recognised, such as "
                "output_type='pil' gives; a tolerance= is one of latents"
            )
        yield from ()

    def _excesses(self) -> dict[int, float]:
        if self._quality is None:
            return {count: excess(trial.errors, self._value) for count, trial in self._tried.items()}
        return {count: shortfall(trial.closeness, self._value) for count, trial in self._tried.items()}

    def plan(self) -> Plan | None:
        """That of the smallest number which keeps it as all larger ones do that were tried; None without."""
        _, kept = bounds(self._excesses())
        if kept is None:
            return None
        trial = self._tried[kept]
        return trial.plan() if self._quality is None else trial.plan(closeness=tuple(trial.closeness))


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
    margin = UNSEEN + statistics.NormalDist().inv_cdf(0.9) * spread * math.sqrt(1 + 1 / len(decibels))
    return statistics.fmean(decibels) + margin - 20 * math.log10(tolerance)


def shortfall(closeness: Sequence[float], quality: float) -> float:
    """By how many dB nine of ten other pictures are expected to miss a quality; negative where they exceed it.

    The middle one counts: one of three may be the one in ten that misses it, and says little about the others.

    Args:
        closeness: PSNR in dB of the pictures that weights were fitted on.
        quality: in dB.
    """
    return quality - statistics.median(closeness) + MARGIN * math.sqrt(1 + 1 / len(closeness))


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
    found = math.ceil(nearest * math.pow(2.0, min(max(excesses[nearest] / SLOPE, -1.0), 1.0)))
    return found if missed is None else max(found, missed + further)
