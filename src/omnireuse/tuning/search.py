"""The search for a plan: candidates follow the measured calls in trial runs, and evidence decides."""

from __future__ import annotations

import copy
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec

from omnireuse.base.records import AnyFloat, Record
from omnireuse.forecasters import forecaster_named
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.pictures import Picture, capped_psnr
from omnireuse.planning.fit import FitState, WeightFit
from omnireuse.policies import Steps
from omnireuse.profiles.plan import FITTED, Evidence, Plan
from omnireuse.tuning.budget import SHORT_ERROR, Budget
from omnireuse.tuning.recording import decibels, relative_errors
from omnireuse.tuning.trials import MeasuredCall, Pausing, Trials

__all__ = ["Candidate", "CandidateRecord", "DueTrial", "GivenSteps", "Search", "clearly_closest", "closest"]

LEAST_GAIN = 5.0
"""dB over the root of the number of pictures, by which a fitted plan must be closer than the untuned default in the
pictures that it was fitted on. On other pictures it loses up to 5 dB of its gain there (``python -m bench tune``)."""
MOST_WORK = 1.0
"""Work of the trial runs on one measured call, in full runs."""


class DueTrial(NamedTuple):
    """One trial run that is due.

    Attributes:
        cost: its work in full runs.
        make: makes it. Nothing is noted of a run that is stopped on the way.
    """

    cost: float
    make: Callable[[Trials], Pausing[None]]


class CandidateRecord(Record, frozen=True, kw_only=True):
    """What a candidate has shown, for later processes.

    Attributes:
        steps, forecaster, errors, closeness, numbers, fitted: as those of `Candidate`.
        fit: as `WeightFit.state`; None for a forecaster with a name of its own.
    """

    steps: tuple[int, ...]
    forecaster: str
    errors: tuple[AnyFloat, ...]
    closeness: tuple[float, ...]
    numbers: tuple[int, ...]
    fitted: int
    fit: FitState | None = None


@dataclass(kw_only=True)
class Candidate:
    """A schedule that is tried, and what trial runs have shown of it.

    Attributes:
        steps: the steps that are computed, in order, with the first.
        total: steps of a run.
        forecaster: its name.
        fit: of the weights of its forecasts; None for a forecaster with a name of its own.
        errors: relative L1 error of the final latents of each picture.
        closeness: PSNR of each picture to the full run's in dB; of its final latents if no pictures are known.
        numbers: the measured call that each of them belongs to.
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
    numbers: list[int] = field(default_factory=list)
    fits: int | None = None
    fitted: int = 0

    @classmethod
    def of_fit(cls, steps: tuple[int, ...], total: int, fits: int | None = None) -> Candidate:
        """A schedule whose weights are fitted."""
        return cls(steps=steps, total=total, forecaster=FITTED, fit=WeightFit(steps, total), fits=fits)

    @classmethod
    def of_record(cls, kept: CandidateRecord, total: int) -> Candidate:
        """A candidate as an earlier process has left it."""
        found = cls.of_fit(kept.steps, total) if kept.fit is not None else cls(steps=kept.steps, total=total)
        found.forecaster, found.fitted = kept.forecaster, kept.fitted
        found.errors, found.closeness, found.numbers = list(kept.errors), list(kept.closeness), list(kept.numbers)
        if found.fit is not None and kept.fit is not None:
            found.fit.state = kept.fit
        return found

    @property
    def record(self) -> CandidateRecord:
        """What it has shown, for later processes."""
        return CandidateRecord(
            steps=self.steps,
            forecaster=self.forecaster,
            errors=tuple(map(AnyFloat, self.errors)),
            closeness=tuple(self.closeness),
            numbers=tuple(self.numbers),
            fitted=self.fitted,
            fit=None if self.fit is None else self.fit.state,
        )

    @property
    def calls(self) -> int:
        """How many measured calls it has followed."""
        return len(set(self.numbers))

    @property
    def steps_before_gap(self) -> int:
        """Number of computed steps before the first reused one."""
        return next((place for place, step in enumerate(self.steps) if step != place), len(self.steps))

    def cost(self, calls: Sequence[MeasuredCall]) -> float:
        """Full runs that a trial run of one of these calls takes; the calls of its first steps are known."""
        known = min(len(call.full.path.calls) for call in calls)
        return (len(self.steps) - min(self.steps_before_gap, known)) / self.total

    def follow(
        self,
        call: MeasuredCall,
        trials: Trials,
        *,
        number: int,
        pictures: Sequence[Picture] | None,
    ) -> Pausing[float]:
        """Follow a measured call, and fit weights on it.

        Args:
            number: of the call.
            pictures: of its full run; None if latents are compared.

        Returns:
            The work that was done, in full runs of one call.
        """
        full = call.full
        if self.fit is None:
            policy = Steps(steps=self.steps, compute_last=self.steps[-1] == self.total - 1)
            strategy = Strategy.where_it_fits(policy, forecaster_named(self.forecaster))
            made = yield from trials.follow(call, strategy, self.steps_before_gap)
        else:
            fit = copy.deepcopy(self.fit)  # a run that is stopped on the way leaves no sums
            fit.is_done = self.fits is not None and self.fitted >= self.fits
            made = yield from trials.fit(call, fit)
            self.fit = fit
            self.fitted += 0 if fit.is_done else full.pictures
        errors = relative_errors(made.latents, full.final)
        if made.pictures is None or pictures is None:
            closeness = decibels(made.latents, full.final)
        else:
            closeness = [capped_psnr(*pair) for pair in zip(made.pictures, pictures, strict=True)]
        self.errors += errors
        self.closeness += closeness
        self.numbers += [number] * len(errors)
        return made.computed / full.calls / self.total

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


class Search(ABC):
    """Finds the plan of one configuration by trial runs on its measured calls.

    Args:
        noises: noise fraction at each step.
    """

    def __init__(self, noises: tuple[float, ...]) -> None:
        self._noises, self._total = noises, len(noises)
        self.runs = 0.0
        """Work of the trial runs so far, in full runs."""
        self._pictures = dict[int, Sequence[Picture] | None]()
        """Of the full run of each call."""
        self._untuned: list[float] = []
        """Errors of the final latents without a plan."""
        self._first = 0
        """Number of the first of the measured calls: those of earlier searches come before it."""

    @abstractmethod
    def due(self, calls: Sequence[MeasuredCall], *, is_whole: bool) -> DueTrial | None:
        """The trial run that comes next; None if nothing is left to try on these calls.

        Args:
            calls: measured so far.
            is_whole: whether no more will come.
        """

    @abstractmethod
    def plan(self) -> Plan | None:
        """The plan that evidence is for; None if the untuned default stays."""

    def needs_another(self, calls: Sequence[MeasuredCall]) -> bool:
        """Whether all has been tried on these calls, and another one must be measured."""
        return False

    def left(self, calls: Sequence[MeasuredCall]) -> float:
        """Work that is left, in full runs, as far as that is known; else that of a picture."""
        return MOST_WORK

    @property
    def kept(self) -> tuple[CandidateRecord, ...]:
        """What later processes may go on with; the untuned default comes first if it was tried."""
        return ()

    def _try(self, candidate: Candidate, calls: Sequence[MeasuredCall], place: int, trials: Trials) -> Pausing[None]:
        """Let a candidate follow the call at this place."""
        number, call = self._first + place, calls[place]
        self._see(calls, trials)
        if len({len(each.full.path.shares) for each in calls}) > 1:
            # Branches that one call could not tell apart are not told apart at all.
            call = replace(call, full=replace(call.full, path=replace(call.full.path, shares=(1.0,))))
        self.runs += yield from candidate.follow(call, trials, number=number, pictures=self._pictures.get(number))

    def decided(self, untuned: tuple[int, ...]) -> Plan:
        """The plan to keep: the one that evidence is for, or the untuned default's, whose computed steps are given. So
        the next process measures nothing again."""
        if (plan := self.plan()) is not None:
            return plan
        evidence = Evidence(errors=tuple(self._untuned), stays=True)
        return msgspec.structs.replace(Candidate(steps=untuned, total=self._total).plan(), evidence=evidence)

    def _see(self, calls: Sequence[MeasuredCall], trials: Trials) -> None:
        """Have the pictures of the full runs made once more, as far as they are not known."""
        for number, call in enumerate(calls, self._first):
            if number not in self._pictures:
                self._pictures[number] = trials.pictures(call)


class GivenSteps(Search):
    """The candidates for a given number of computed steps: the untuned default, and schedules whose weights are fitted.
    If none can be fitted, the default's forecaster follows planned schedules, and its schedule holds outputs.

    Args:
        budget: with a number of computed steps.
        calls: measured so far, at least one.
        planned: schedules that are tried beside that of the budget.
        pictures: that each candidate follows, ≥ 1.
        kept: what an earlier process has tried; the candidates are made from it in place of these schedules.
        most_work: of the trials of one call, in full runs.
    """

    def __init__(
        self,
        budget: Budget,
        calls: Sequence[MeasuredCall],
        planned: Sequence[tuple[int, ...]],
        pictures: int = 1,
        kept: Sequence[CandidateRecord] = (),
        most_work: float = MOST_WORK,
    ) -> None:
        super().__init__(budget.noises)
        self._wanted = pictures
        self.untuned: Candidate | None = None
        self.others: list[Candidate] = []
        if kept:
            found = [Candidate.of_record(each, self._total) for each in kept]
            self.untuned = found.pop(0) if budget.reuses else None
            self.others = found
            self._first = 1 + max((number for each in kept for number in each.numbers), default=-1)
            return
        steps, left, total = budget.steps, most_work, self._total
        if budget.reuses:
            self.untuned = Candidate(steps=steps, total=total)
            left -= self.untuned.cost(calls)
        planned = tuple(dict.fromkeys(planned))
        if all(call.full.unfit is None for call in calls):
            others = [Candidate.of_fit(each, total) for each in dict.fromkeys((*planned, steps))]
        else:
            others = [Candidate(steps=each, total=total) for each in planned if each != steps or self.untuned is None]
            others.append(Candidate(steps=steps, total=total, forecaster="hold"))
        for candidate in others:
            cost = candidate.cost(calls)
            if cost <= left:
                left -= cost
                self.others.append(candidate)

    @property
    def _candidates(self) -> list[Candidate]:
        return [*([] if self.untuned is None else [self.untuned]), *self.others]

    def due(self, calls: Sequence[MeasuredCall], *, is_whole: bool) -> DueTrial | None:
        """The trial run that comes next: of the candidate that has followed the fewest pictures. The untuned default
        follows each call first, because the others are compared with it."""
        for candidate in sorted(self._candidates, key=lambda each: len(each.errors)):
            place = self._place(candidate, calls)
            if place is not None:
                if self.untuned is not None and self._first + place not in self.untuned.numbers:
                    candidate = self.untuned
                return DueTrial(candidate.cost(calls[place:][:1]), partial(self._try, candidate, calls, place))
        return None

    def _place(self, candidate: Candidate, calls: Sequence[MeasuredCall]) -> int | None:
        """Of the first call that a candidate has still to follow; None if there is none."""
        if len(candidate.errors) >= self._wanted:
            return None
        followed = set(candidate.numbers)
        return next((place for place in range(len(calls)) if self._first + place not in followed), None)

    def needs_another(self, calls: Sequence[MeasuredCall]) -> bool:
        """Whether a candidate has followed all of these calls, and too few pictures."""
        return any(len(each.errors) < self._wanted and self._place(each, calls) is None for each in self._candidates)

    def left(self, calls: Sequence[MeasuredCall]) -> float:
        """Work that is left, in full runs."""
        per_call = calls[0].full.pictures
        return sum(
            each.cost(calls[:1]) * max(self._wanted - len(each.errors), 0) / per_call for each in self._candidates
        )

    @property
    def kept(self) -> tuple[CandidateRecord, ...]:
        """What later processes may go on with."""
        return tuple(each.record for each in self._candidates)

    def plan(self) -> Plan | None:
        """The plan that evidence is for; None if the untuned default stays."""
        best = clearly_closest(self.others, self.untuned)
        if self.untuned is not None:
            self._untuned = self.untuned.errors
        elif best is None:  # every step is computed
            self._untuned = [0.0 for candidate in self.others[:1] for _ in candidate.errors]
        if best is None or self.untuned is None:
            return None if best is None else best.plan(untuned=())
        return best.plan(untuned=tuple(_matching(best, self.untuned, self.untuned.errors)))


def closest(candidates: Sequence[Candidate]) -> Candidate | None:
    """The one whose pictures are closest on average; None without any."""
    return max(candidates, key=lambda each: statistics.fmean(each.closeness), default=None)


def clearly_closest(others: Sequence[Candidate], untuned: Candidate | None) -> Candidate | None:
    """The schedule whose pictures are closest, of those that leave no picture's latents farther than the untuned
    default does; None if it is not closer than that by enough. Each is compared in the pictures that it has followed.

    Args:
        untuned: which has followed them all; None if the default computes every step.
    """
    if untuned is None:
        best = closest(others)
        return None if best is None or max(best.errors) > SHORT_ERROR else best

    def gain(candidate: Candidate) -> float:
        its = _matching(candidate, untuned, untuned.closeness)
        return statistics.fmean(candidate.closeness) - statistics.fmean(its)

    others = [
        each
        for each in others
        if all(own <= other for own, other in zip(each.errors, _matching(each, untuned, untuned.errors), strict=True))
    ]
    best = max(others, key=gain, default=None)
    return best if best is not None and gain(best) >= LEAST_GAIN / math.sqrt(len(best.closeness)) else None


def _matching(candidate: Candidate, untuned: Candidate, values: Sequence[float]) -> list[float]:
    """Those values of the untuned default that belong to the calls a candidate has followed, in its order."""
    by_call: dict[int, list[float]] = {}
    for number, value in zip(untuned.numbers, values, strict=True):
        by_call.setdefault(number, []).append(value)
    return [value for number in dict.fromkeys(candidate.numbers) for value in by_call[number]]
