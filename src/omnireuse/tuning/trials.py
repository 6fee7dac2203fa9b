"""The shadows of one configuration: candidates are tried on the measured calls, and evidence decides."""

from __future__ import annotations

import math
import operator
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import torch

from omnireuse.forecasters import forecaster_named
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.pictures import Picture, capped_psnr
from omnireuse.planning.fit import WeightFit
from omnireuse.planning.path import OutputProducts
from omnireuse.planning.planner import Planner
from omnireuse.policies import Steps
from omnireuse.profiles.plan import FITTED, Evidence, Plan
from omnireuse.tuning.budget import SHORT_ERROR, Budget
from omnireuse.tuning.full_run import FullRun, decibels, relative_errors

__all__ = [
    "Leader",
    "MeasuredCall",
    "Pausing",
    "Shadow",
    "Shadows",
    "Trial",
    "Trials",
    "Try",
    "Trying",
    "clearly_closest",
    "finished",
    "whole",
]

GROWTHS = (0.0, 2.0)
"""What plans assume of errors on their way to the picture (`Planner`): trials decide (``python -m bench tune``)."""
LEAST_GAIN = 5.0
"""dB over the root of the number of pictures, by which a fitted plan must be closer than the untuned default in the
pictures that it was fitted on. On other pictures it loses up to 5 dB of its gain there (``python -m bench tune``)."""
MOST_WORK = 1.0
"""Work of the shadows of one measured call, in full runs."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCall:
    """A call whose run was measured, and that can be made again.

    Attributes:
        replay: from which the host makes the call again.
        full: what was measured.
    """

    replay: Any
    full: FullRun


class Shadow(NamedTuple):
    """What a shadow has made.

    Attributes:
        computed: calls of the denoisers that were made.
        latents: the final latents, one row for each picture.
        pictures: as floats in 0…1; None if the call returns none.
    """

    computed: int
    latents: torch.Tensor
    pictures: Sequence[Picture] | None = None


T = TypeVar("T")
Pictures = Sequence[Sequence[Picture] | None]
Pausing = Generator[None, None, T]
"""Work that pauses if its host makes pauses, after calls of the model."""


def finished(work: Pausing[T]) -> T:
    """Do all of the work at once; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's own type


def whole(made: Shadow | Pausing[Shadow]) -> Pausing[Shadow]:
    """The shadow, after the pauses of its host."""
    return made if isinstance(made, Shadow) else (yield from made)


class Leader(Protocol):
    """Makes measured calls again to fit weights. Calls before the first reused step are known of the full run.

    A host that serves others meanwhile returns a generator, which pauses.
    """

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Shadow | Pausing[Shadow]:
        """Fit weights for the steps of a policy along the full run's path, and follow them."""


class Shadows(Leader, Protocol):
    """Makes measured calls again beside the pictures."""

    def announce(self, words: str) -> None:
        """Say what the shadows from now on try."""

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Shadow | Pausing[Shadow]:
        """Follow a strategy of region "step", whose first step that is not computed is given."""

    def arrive(self, call: MeasuredCall) -> Shadow:
        """The full run once more, without a call of the denoisers."""


class Try(NamedTuple):
    """One shadow that is due.

    Attributes:
        words: what it tries.
        cost: its work in full runs.
        make: makes it.
    """

    words: str
    cost: float
    make: Callable[[Shadows], Pausing[None]]


@dataclass(kw_only=True)
class Trial:
    """A schedule that is tried, and what its shadows have shown.

    Attributes:
        steps: the steps that are computed, in order, with the first.
        total: steps of a run.
        forecaster: its name.
        fit: of the weights of its forecasts; None for a forecaster with a name of its own.
        errors: relative L1 error of the final latents of each picture.
        closeness: PSNR of each picture to the full run's in dB; of its final latents if no pictures are known.
        calls: how many of the measured calls it has followed.
        fits: how many pictures weights are fitted to, or a few more of the same call; the others judge them. None for
            all.
        fitted: how many of the first pictures they were fitted to.
    """

    steps: tuple[int, ...]
    total: int
    forecaster: str = "blend"
    fit: WeightFit | None = None
    errors: list[float] = field(default_factory=list)
    closeness: list[float] = field(default_factory=list)
    calls: int = 0
    fits: int | None = None
    fitted: int = 0

    @classmethod
    def of_fit(cls, steps: tuple[int, ...], total: int, fits: int | None = None) -> Trial:
        """A schedule whose weights are fitted."""
        return cls(steps=steps, total=total, forecaster=FITTED, fit=WeightFit(steps, total), fits=fits)

    @property
    def steps_before_gap(self) -> int:
        """Number of computed steps before the first reused one."""
        return next((place for place, step in enumerate(self.steps) if step != place), len(self.steps))

    def cost(self, calls: Sequence[MeasuredCall]) -> float:
        """Full runs that a shadow of one of these calls takes; the calls of its first steps are known."""
        known = min(len(call.full.path.calls) for call in calls)
        return (len(self.steps) - min(self.steps_before_gap, known)) / self.total

    @property
    def policy(self) -> Steps:
        """The schedule."""
        return Steps(steps=self.steps, compute_last=self.steps[-1] == self.total - 1)

    def try_next(self, calls: Sequence[MeasuredCall], shadows: Shadows, pictures: Pictures = ()) -> Pausing[float]:
        """Let the schedule follow the first call that it has not followed, and fit weights on it."""
        if self.fit is not None:
            return (yield from self.lead(calls, shadows, pictures))
        call = calls[self.calls]
        strategy = Strategy.where_it_fits(self.policy, forecaster_named(self.forecaster))
        made = yield from whole(shadows.follow(call, strategy, self.steps_before_gap))
        return self._note(made, call, pictures) / self.total

    def lead(self, calls: Sequence[MeasuredCall], leader: Leader, pictures: Pictures = ()) -> Pausing[float]:
        """Fit weights on the first call that the schedule has not followed.

        Args:
            pictures: of the full runs; empty if latents are compared.

        Returns:
            The work that was done, in full runs of one call.
        """
        assert self.fit is not None, "its weights are fitted"
        call, full = calls[self.calls], calls[self.calls].full
        if len({len(each.full.path.shares) for each in calls}) > 1:
            # Branches that one call could not tell apart are not told apart at all.
            full = replace(full, path=replace(full.path, shares=(1.0,)))
        self.fit.is_done = self.fits is not None and self.fitted >= self.fits
        made = yield from whole(leader.lead(replace(call, full=full), self.fit, self.policy))
        self.fitted += 0 if self.fit.is_done else full.pictures
        return self._note(made, call, pictures) / self.total

    def _note(self, made: Shadow, call: MeasuredCall, pictures: Pictures) -> float:
        """Note what a shadow has made; return its work in steps."""
        true = pictures[self.calls] if pictures else None
        self.calls += 1
        self.errors += relative_errors(made.latents, call.full.final)
        if made.pictures is None or true is None:
            self.closeness += decibels(made.latents, call.full.final)
        else:
            self.closeness += [capped_psnr(*pair) for pair in zip(made.pictures, true, strict=True)]
        return made.computed / call.full.calls

    def plan(self, **seen: tuple[float, ...]) -> Plan:
        """The plan with its evidence; `seen` has further attributes of that."""
        return Plan(
            steps=self.steps,
            forecaster=self.forecaster,
            weights=() if self.fit is None else self.fit.weights,
            psnr=None,
            held_out=(),
            evidence=Evidence(errors=tuple(self.errors), **seen),  # type: ignore[arg-type]  # none is the runs
        )


class Trying(ABC):
    """Tries candidates on the measured calls.

    Args:
        noises: noise fraction at each step.
        earlier: what is known of calls of other processes, for plans.
    """

    def __init__(self, noises: tuple[float, ...], earlier: Sequence[OutputProducts]) -> None:
        self._noises, self._total, self._earlier = noises, len(noises), earlier
        self.runs = 0.0
        """Work of the shadows so far, in full runs."""
        self._pictures = list[Sequence[Picture] | None]()
        """Of the full runs."""
        self._untuned: list[float] = []
        """Errors of the final latents without a plan."""

    @abstractmethod
    def due(self, calls: Sequence[MeasuredCall], *, is_whole: bool) -> Try | None:
        """The shadow that comes next; None if nothing is left to try.

        Args:
            calls: measured so far.
            is_whole: whether no more will come.
        """

    @abstractmethod
    def plan(self) -> Plan | None:
        """The plan that evidence is for; None if the untuned default stays."""

    @property
    def tried(self) -> int:
        """How many of the measured calls every candidate so far has followed."""
        return 0

    def let_go(self, calls: int) -> bool:
        """Go on without the first calls, if every candidate has followed them; return whether that is so."""
        return False

    def _try(self, trial: Trial, calls: Sequence[MeasuredCall], shadows: Shadows) -> Pausing[None]:
        self._see(calls, shadows)
        self.runs += yield from trial.try_next(calls, shadows, self._pictures)

    def decided(self, untuned: tuple[int, ...]) -> Plan:
        """The plan to keep: the one that evidence is for, or the untuned default's, whose computed steps are given. So
        the next process measures nothing again."""
        if (plan := self.plan()) is not None:
            return plan
        evidence = Evidence(errors=tuple(self._untuned), stays=True)
        return msgspec.structs.replace(Trial(steps=untuned, total=self._total).plan(), evidence=evidence)

    def _see(self, calls: Sequence[MeasuredCall], shadows: Shadows) -> None:
        """Have the pictures of the full runs made once more, as far as they are not known."""
        for call in calls[len(self._pictures) :]:
            self._pictures.append(shadows.arrive(call).pictures)

    def _planned(self, calls: Sequence[MeasuredCall], budget: int, growth: float) -> tuple[int, ...]:
        """The schedule of so many computed steps with the least error expected (`Planner`)."""
        products = OutputProducts.joined([*self._earlier, *(call.full.products for call in calls)])
        return Planner(products, self._noises, fewest=budget, growth=growth).best(budget)


class Trials(Trying):
    """The candidates for one number of computed steps: the untuned default, and schedules whose weights are fitted.
    If none can be fitted, the default's forecaster follows planned schedules, and its schedule holds outputs.

    Args:
        budget: with a number of computed steps.
        calls: measured so far, at least one; schedules are planned from them.
        earlier: what is known of calls of other processes.
    """

    def __init__(self, budget: Budget, calls: Sequence[MeasuredCall], earlier: Sequence[OutputProducts] = ()) -> None:
        super().__init__(budget.noises, earlier)
        steps, left, total = budget.steps, MOST_WORK, self._total
        self.untuned: Trial | None = None
        self.others: list[Trial] = []
        if budget.reuses:
            self.untuned = Trial(steps=steps, total=total)
            left -= self.untuned.cost(calls)
        planned = dict.fromkeys(self._planned(calls, len(steps), growth) for growth in GROWTHS)
        if all(call.full.unfit is None for call in calls):
            others = [Trial.of_fit(each, total) for each in dict.fromkeys((*planned, steps))]
        else:
            others = [Trial(steps=each, total=total) for each in planned if each != steps or self.untuned is None]
            others.append(Trial(steps=steps, total=total, forecaster="hold"))
        for trial in others:
            cost = trial.cost(calls)
            if cost <= left:
                left -= cost
                self.others.append(trial)

    @property
    def _candidates(self) -> list[Trial]:
        return [*([] if self.untuned is None else [self.untuned]), *self.others]

    def due(self, calls: Sequence[MeasuredCall], *, is_whole: bool) -> Try | None:
        """The trial run that comes next: each candidate on one call after the other."""
        candidates = self._candidates
        number, trial = min(enumerate(candidates, 1), key=lambda each: each[1].calls, default=(0, None))
        if trial is None or trial.calls >= len(calls):
            return None
        cost = trial.cost(calls[trial.calls :][:1])
        return Try(f"plan {number} of {len(candidates)}", cost, partial(self._try, trial, calls))

    @property
    def tried(self) -> int:
        """How many of the measured calls every candidate so far has followed."""
        return min((trial.calls for trial in self._candidates), default=0)

    def let_go(self, calls: int) -> bool:
        """Go on without the first calls, if every candidate has followed them; return whether that is so."""
        if any(trial.calls != calls for trial in self._candidates):
            return False
        for trial in self._candidates:
            trial.calls = 0
        self._pictures.clear()
        return True

    def plan(self) -> Plan | None:
        """The plan that evidence is for; None if the untuned default stays."""
        best = clearly_closest(self.others, self.untuned)
        if self.untuned is not None:
            self._untuned = self.untuned.errors
        elif best is None:  # every step is computed
            self._untuned = [0.0 for trial in self.others[:1] for _ in trial.errors]
        return None if best is None else best.plan(untuned=tuple(self._untuned))


def clearly_closest(others: Sequence[Trial], untuned: Trial | None) -> Trial | None:
    """The schedule whose pictures are closest, of those that leave no picture's latents farther than the untuned
    default does; None if it is not closer than that by enough.

    Args:
        untuned: None if the default computes every step.
    """
    if untuned is not None:
        others = [trial for trial in others if all(map(operator.le, trial.errors, untuned.errors))]
    best = max(others, key=lambda trial: statistics.fmean(trial.closeness), default=None)
    if best is None:
        return None
    if untuned is None:
        return best if max(best.errors) <= SHORT_ERROR else None
    gain = statistics.fmean(best.closeness) - statistics.fmean(untuned.closeness)
    return best if gain >= LEAST_GAIN / math.sqrt(len(best.closeness)) else None
