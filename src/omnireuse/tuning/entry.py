"""One configuration that is tuned: from its first measured picture to the plan that serves the others."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Literal

import msgspec
import torch

from omnireuse.base.validation import counted
from omnireuse.errors import NotTunableError, OmniReuseError, StateError, UnsupportedModelError
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.path import OutputProducts
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.profile import Profile
from omnireuse.summary.tuning import BEGINS, GOES_ON, Tuning
from omnireuse.tuning.budget import Budget, Ledger, Work, work_of
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.fewest import search_for
from omnireuse.tuning.lean import REFERENCES, LeanSearch
from omnireuse.tuning.own_work import OwnWork
from omnireuse.tuning.pulse import StoppedError
from omnireuse.tuning.recording import FullRun, Recording
from omnireuse.tuning.search import MOST_WORK, Search
from omnireuse.tuning.store import Measured, SearchRecord, Store
from omnireuse.tuning.trials import MeasuredCall, Pausing, Trials, finished

__all__ = ["MOST_FAILURES", "Shared", "TuningEntry"]

logger = logging.getLogger("omnireuse")

MOST_FAILURES = 3
"""Failures in a row that end tuning of a configuration."""
MOST_MEASURED = 4
"""Configurations whose pictures are kept at a time."""
MOST_KEPT = 3
"""Calls whose outputs' inner products are kept for plans of later processes."""
PATIENCE = 1.8
"""Most time of a picture and the trial runs after it, as a multiple of that of a full picture: what tuning does besides
stays within twice as long."""
UNNOTICED = 1.0
"""Seconds that trial runs may always take, so that small models need no more pictures than large ones."""


@dataclass(eq=False, kw_only=True)
class Shared:
    """What the entries of one process share.

    Attributes:
        pictures: how many are measured at most, ≥ 1.
        store: keeps plans.
        command: what made a plan, for its file.
        agreement: of ranks that share a forward pass: they make the same trial runs and follow the first one's plan,
            which alone reads and writes files. Alone by default.
        ledger: of the work of all pictures.
        measures_all: measure as many pictures as are wanted, whatever is known and however long it takes.
        entries: by the digest of their configuration, and their number of computed steps.
        lock: guards the entries.
        own_work: in which no error ends a picture.
    """

    pictures: int
    store: Store
    command: str
    agreement: Agreement = field(default_factory=Agreement)
    ledger: Ledger = field(default_factory=Ledger)
    measures_all: bool = False
    entries: dict[tuple[str, int], TuningEntry] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    own_work: OwnWork = field(default_factory=OwnWork)


@dataclass(eq=False, kw_only=True)
class TuningEntry:
    """One configuration with one number of computed steps.

    `start` begins a picture that is computed in full, and `learn` keeps it if it `is_due` to be measured; `go_on` makes
    trial runs after it, for about as long as the picture took. Once all is tried, a plan is chosen and kept, and the
    state is "ready". A picture or a trial run that fails costs itself alone (`failed`, `skip`); `end` measures no more.

    Attributes:
        calls_a_step: of the denoiser.
        strategy: of the plan; None if the untuned default serves.
        full_every: as `Plan.full_every`.
        earlier: what is known of calls that cannot be made again: of earlier processes, of other numbers of computed
            steps, or set aside.
        budgets: numbers of computed steps that the configuration was asked for.
        tried: the trial runs of earlier processes, by the number of computed steps.
        calls: measured here, which trial runs follow.
        last: number of the latest picture.
        begun, ended: when the latest picture has begun, and when it was made; None if trial runs have followed it.
        usual: seconds that the fastest full one took.
        pace: of the latest trial run, in seconds for the work of a full picture.
        lock: held while this process measures the configuration.
        is_busy: whether a picture is measured or trial runs are made now; hosts set it back.
    """

    shared: Shared
    configuration: Configuration
    budget: Budget
    tuning: Tuning
    calls_a_step: float = 1.0
    strategy: Strategy | None = None
    full_every: int | None = None
    profile: Profile | None = None
    earlier: list[OutputProducts] = field(default_factory=list)
    budgets: frozenset[int] = frozenset()
    tried: dict[int, SearchRecord] = field(default_factory=dict)
    calls: list[MeasuredCall] = field(default_factory=list)
    search: Search | None = None
    failures: int = 0
    last: int = 0
    begun: float = 0.0
    ended: float | None = None
    usual: float = math.inf
    pace: float | None = None
    lock: Any = None
    is_busy: bool = False
    _to_follow: int = 0

    @property
    def products(self) -> list[OutputProducts]:
        """What is known of the outputs of full runs, one for each call."""
        return [*self.earlier, *(call.full.products for call in self.calls)]

    @property
    def runs(self) -> float:
        """Work of full runs and trial runs, in full runs of one call."""
        return len(self.calls) + (0.0 if self.search is None else self.search.runs)

    @property
    def work(self) -> Work:
        """Work of a picture with every step computed."""
        return work_of(self.calls_a_step * len(self.budget.noises), self.budget.elements)

    @property
    def share(self) -> float:
        """The share of steps that are computed if the picture is not measured."""
        plan = None if self.profile is None or self.strategy is None else self.budget.plan_of(self.profile.plans)
        return len(self.budget.untuned_steps if plan is None else plan.steps) / len(self.budget.noises)

    @property
    def is_whole(self) -> bool:
        """Whether all pictures are measured, and nothing is decided. Pictures of one call do not judge each other."""
        is_judged = not self.budget.aim or len(self.calls) > 1
        is_enough = self.tuning.pictures >= self.tuning.wanted and is_judged and bool(self.calls)
        needs_another = self.search is not None and self.search.needs_another(self.calls)
        return self.tuning.state == "measuring" and is_enough and not needs_another

    @property
    def is_idle(self) -> bool:
        """Whether only trial runs are missing, and nobody is working on it."""
        return self.is_whole and not self.is_busy

    @property
    def is_due(self) -> bool:
        """Whether the next picture is to be measured."""
        return self.tuning.state == "measuring" and not (self.is_busy or self.is_whole)

    @property
    def may_compute_all(self) -> bool:
        """Whether the ledger allows the next picture in full, with the trial runs that follow it."""
        left = 0.0
        if self.products:
            left = MOST_WORK if self.search is None or not self.calls else self.search.left(self.calls)
        return self._allows(min(left, MOST_WORK), full=1)

    def _allows(self, runs: float, full: int = 0) -> bool:
        if self.shared.measures_all:
            return True
        share = min(self.share, self.budget.expected_share)
        return self.shared.ledger.allows(runs * self.work, self.work, share, full=full, by=self.budget.settled)

    def made(self, *, is_full: bool, calls: int = 0) -> None:
        """Note a picture in the ledger.

        Args:
            is_full: whether every step was computed because it was measured.
            calls: of the denoiser, made or reused; one for each step at least.
        """
        with self._harmless(), self.shared.lock:
            self.calls_a_step = self.shared.ledger.calls_a_step = max(calls / len(self.budget.noises), 1.0)
            self.shared.ledger.made(self.work, 1.0 if is_full else self.share)

    def start(self) -> None:
        """Begin a picture that is measured or followed by trial runs, until the host says that the entry is no longer
        busy."""
        self.is_busy, self.begun = True, monotonic()
        if self.calls or self.failures:
            return
        missing = self.tuning.wanted - self.tuning.pictures
        logger.info(
            "tuning %s for runs of %d steps: the %s, then %s",
            "goes on" if self.earlier else "begins",
            len(self.budget.noises),
            "next picture is computed in full"
            if missing == 1
            else f"next {missing} pictures or more are computed in full",
            self.budget.words,
        )
        if self.tuning.near:
            logger.info("%s", self.tuning.near)

    def finish(self) -> None:
        """Note that the picture is made."""
        self.ended = monotonic()

    def learn(self, recording: Recording, replay: object) -> bool:
        """Note a measured call, or why that failed. The calls of few configurations are kept with this one.

        Args:
            recording: of its values.
            replay: from which the host makes the call again.

        Returns:
            Whether trial runs follow it. The first call takes its usual time, unless it shows all that is wanted.
        """
        shared = self.shared
        self.finish()
        self.usual = min(self.usual, monotonic() - self.begun)
        failure = shared.own_work.error_of(lambda: self._keep(MeasuredCall(replay=replay, full=FullRun.of(recording))))
        if (failure := shared.agreement.of_any(failure)) is not None:
            self.failed(failure)
            return False
        return self.tuning.state == "measuring" and (len(self.products) > 1 or self.is_whole)

    def _keep(self, call: MeasuredCall) -> None:
        shared = self.shared
        with shared.lock:
            if self.tuning.state != "measuring":  # it was ended meanwhile
                return
            self.calls.append(call)
            self._save()
            self.note(BEGINS)
            entries = shared.entries.values()
            others = sorted((each for each in entries if each.calls and not each.is_busy), key=lambda each: each.last)
            for each in others[: max(len(others) + 1 - MOST_MEASURED, 0)]:
                each._set_aside()

    def _save(self) -> None:
        """Keep for later processes what was measured and tried."""
        if self.search is not None and (kept := self.search.kept):
            wanted = SearchRecord(pictures=self._to_follow, runs=round(self.search.runs, 4), candidates=kept)
            self.tried[len(self.budget.steps)] = wanted
        if self.shared.agreement.is_first:
            measured = Measured.of(self.products[-MOST_KEPT:], self.budgets, self.tried)
            self.shared.store.keep_measured(self.configuration, measured)

    def _set_aside(self) -> None:
        """Drop the calls. What they have shown stays, and one more picture makes trial runs possible again."""
        self.earlier = self.products[-MOST_KEPT:]
        self.drop()
        logger.info("pictures of a configuration are set aside: %d others are measured", MOST_MEASURED)
        self.note()

    def go_on(self, trials: Trials) -> None:
        """Make trial runs that are due and that the ledger allows, for about as long as the picture took; once all is
        tried, decide. What is not finished goes on after the next picture of the configuration."""
        finished(self.going_on(trials, is_patient=False))

    def going_on(self, trials: Trials, *, is_patient: bool = True) -> Pausing[None]:
        """The work of `go_on` in parts, between which the host may pause.

        Args:
            is_patient: whether nobody waits for it, so that it may take as long as it takes.
        """
        agreement = self.shared.agreement
        waits, failure = yield from self._trial_runs(trials, is_patient or self.shared.measures_all)
        if (failure := agreement.of_any(failure)) is not None:
            self.failed(failure)
            return
        self.failures = 0
        if waits or not self.is_whole:
            with self._harmless():
                self._save()
            self.note(waits or BEGINS)
            return
        try:
            decided = agreement.of_first(lambda: self.shared.own_work.of(self._decided))
        except OmniReuseError as error:  # nor because a decision does
            self.failed(NotTunableError(str(error)))
            return
        with self._harmless():
            self.take(*decided)
            logger.info("tuning has ended for calls with %s: %s", self.configuration.words, self.tuning)
            self.drop()
            self.release()

    def _trial_runs(self, trials: Trials, is_patient: bool) -> Pausing[tuple[str, OmniReuseError | None]]:
        """Make trial runs; return why others wait, and the error of one, which ends no picture."""
        try:
            with self.shared.own_work():
                return (yield from self._run_trials(trials, is_patient)), None
        except StoppedError as stopped:
            logger.info("trial runs have ended, and go on after another picture: %s", stopped)
            return GOES_ON, None
        except OmniReuseError as error:
            return "", error

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Work of tuning's own whose error ends tuning of the configuration, and no picture."""
        try:
            with self.shared.own_work():
                yield
        except OmniReuseError as error:
            if not self.shared.agreement.is_alone:
                # The other ranks have not met it. They would wait for this one in the next trial run or forward pass.
                raise
            self.failed(error)

    def _run_trials(self, trials: Trials, is_patient: bool) -> Pausing[str]:
        """Make trial runs; return why others wait, empty if none do."""
        if self.search is None:
            kept = self.tried.get(len(self.budget.steps))
            candidates = () if kept is None else kept.candidates
            # Pictures of earlier processes cannot be made again.
            missing = max(self.tuning.wanted - sum(len(each.products) for each in self.earlier), 1)
            self._to_follow = missing if kept is None else kept.pictures
            self.search = search_for(self.budget, self.calls, self.earlier, self._to_follow, candidates)
            if REFERENCES in self.configuration.call and not self.budget.aim:
                self.search = LeanSearch(self.search, self.budget)
            self.search.runs = 0.0 if kept is None else kept.runs
        since = self.ended or monotonic()
        took, self.ended = self.usual if self.ended is None else since - self.begun, None
        until, is_first = since + max(PATIENCE * self.usual - took, UNNOTICED), True
        while (due := self.search.due(self.calls, is_whole=self.is_whole)) is not None:
            if not self._allows(due.cost):
                return self.budget.waits
            if not (is_patient or is_first or self._ends_by(until, due.cost)):
                return GOES_ON
            before, begun = self.search.runs, monotonic()
            yield from due.make(trials)
            if not self.shared.measures_all:
                self.shared.ledger.spend((self.search.runs - before) * self.work)
            if due.cost:
                is_first, self.pace = False, (monotonic() - begun) / due.cost
        return ""

    def _ends_by(self, until: float, cost: float) -> bool:
        """Whether a trial run of this work seems to end by then."""
        ends = monotonic() + cost * (self.usual if self.pace is None else self.pace)
        return self.shared.agreement.of_first(lambda: ends <= until)

    def _decided(self) -> tuple[Profile, Plan, str | None]:
        """Decide, and keep the plan: the profile with it, the plan, and the file."""
        search, store = self.search, self.shared.store
        known = store.load(self.configuration.digest)
        assert search is not None, "it was made"
        if known is not None and (theirs := self.budget.plan_of(known.plans)) is not None:
            # Another replica was first: one plan for all.
            return known, theirs, str(store.file(self.configuration.digest))
        plan = search.decided(self.budget.untuned_steps)
        assert plan.evidence is not None, "it was tried"
        plan = msgspec.structs.replace(plan, evidence=msgspec.structs.replace(plan.evidence, runs=round(self.runs, 2)))
        profile = self.configuration.profile(
            self.budget.with_plan(known.plans if known is not None else {}, plan),
            coordinates=self.budget.noises,
            num_prompts=(self.tuning.pictures, 0),
            cost_in_runs=round(self.tuning.runs, 1),
            command=self.shared.command,
        )
        path = store.save(self.configuration, profile)
        return profile, plan, None if path is None else str(path)

    def take(self, profile: Profile, plan: Plan, path: str | None) -> None:
        """Use a plan from now on; without a strategy of its own, the untuned default is used."""
        evidence, pictures = plan.evidence, profile.num_prompts[0]
        assert evidence is not None, "the store takes no plan without"
        self.profile, self.full_every = profile, plan.full_every
        self.strategy = None if evidence.stays else plan.strategy(profile.coordinates)
        self.tuning = replace(
            self.tuning,
            state="ready",
            pictures=pictures,
            runs=evidence.runs,
            expected=None if evidence.stays else evidence.error,
            path=path,
            reason=f"{self.budget.words_of(plan)}, on {counted(pictures, 'measured picture')}",
        )

    def failed(self, error: OmniReuseError, what: str = "") -> None:
        """Note that a picture was not measured, or trial runs were not made; end if that is known to be in vain, or
        after several failures in a row. `what` begins the reason."""
        with self.shared.lock:
            self.failures += 1
            if isinstance(error, (NotTunableError, UnsupportedModelError)) or self.failures >= MOST_FAILURES:
                self.end("failed", f"{what}{error}")
            else:
                self.skip(f"{what}{error}")

    def broken_off(self, error: BaseException) -> None:
        """Handle the error of a picture that was being measured. Only one of memory may be tuning's."""
        why = f"a picture has failed ({type(error).__name__})"
        if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            self.failed(StateError(why))
        else:
            self.skip(why)

    def skip(self, why: str) -> None:
        """Go on without a picture that was not measured; those before it stay measured."""
        logger.info("%s; the next picture is measured", why)
        self.note(why)

    def end(self, state: Literal["off", "failed"], why: str) -> None:
        """Stop measuring, and drop what was measured; the untuned default is used."""
        self.drop()
        self.profile = self.strategy = self.full_every = None
        self.tuning = replace(self.tuning, state=state, pictures=0, runs=0.0, reason=why)
        self.release()
        (logger.warning if state == "failed" else logger.info)("%s", self.tuning)

    def note(self, reason: str | None = None) -> None:
        """Say in `tuning` how much is measured, and why it goes on."""
        # Trial runs need a call of this process: one picture at least is still to be measured, and what is asked of
        # pictures is judged by all of them.
        most = 0 if self.budget.aim else self.shared.pictures - 1
        pictures = min(sum(len(each.products) for each in self.earlier), most)
        pictures += sum(call.full.pictures for call in self.calls)
        reason = self.tuning.reason if reason is None else reason
        self.tuning = replace(self.tuning, pictures=pictures, runs=round(self.runs, 2), reason=reason)

    def drop(self) -> None:
        """Drop the values that were measured."""
        self.calls, self.search = [], None

    def release(self) -> None:
        """Let other processes measure."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None
