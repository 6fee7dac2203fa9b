"""One configuration that is tuned: from its first measured picture to the plan that serves the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from omnireuse.base.validation import counted
from omnireuse.errors import NotTunableError, OmniReuseError, StateError, UnsupportedModelError
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.path import OutputProducts
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.profile import Profile
from omnireuse.summary.tuning import BEGINS, Tuning
from omnireuse.tuning.budget import Budget, Ledger, Work, work_of
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.fewest import trying
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.lean import REFERENCES, LeanTrials
from omnireuse.tuning.own_work import OwnWork
from omnireuse.tuning.recording import Recording
from omnireuse.tuning.store import Store
from omnireuse.tuning.trials import MOST_WORK, MeasuredCall, Pausing, Shadows, Trying, finished

__all__ = ["MOST_FAILURES", "Entry", "Shared"]

logger = logging.getLogger("omnireuse")

MOST_FAILURES = 3
"""Failures in a row that end tuning of a configuration."""
MOST_MEASURED = 4
"""Configurations whose pictures are kept at a time."""
MOST_KEPT = 3
"""Calls whose outputs' inner products are kept for plans of later processes."""
SLOW = 120.0
"""Seconds of a measured picture, from which on shadows are made one at a time, each after another picture."""


@dataclass(eq=False, kw_only=True)
class Shared:
    """What the entries of one process share.

    Attributes:
        pictures: how many are measured at most, ≥ 1.
        store: keeps plans.
        command: what made a plan, for its file.
        agreement: of ranks that share a forward pass: they make the same shadows and follow the first one's plan, which
            alone reads and writes files. Alone by default.
        ledger: of the work of all pictures.
        measures_all: measure as many pictures as are wanted, whatever is known and whatever it costs.
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
    entries: dict[tuple[str, int], Entry] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    own_work: OwnWork = field(default_factory=OwnWork)


@dataclass(eq=False, kw_only=True)
class Entry:
    """One configuration with one number of computed steps.

    `start` and `learn` measure a picture; `go_on` makes the shadows that are due after it. Once all pictures are
    measured and all plans tried, one is chosen and kept, and the state is "ready". `failed` and `begin_anew` go back
    to the first picture; `end` measures no more.

    Attributes:
        pace: calls of the denoiser in each step.
        strategy: of the plan; None if the untuned default serves.
        full_every: as `Plan.full_every`.
        earlier: what is known of calls that cannot be made again: of earlier processes, of other numbers of computed
            steps, or set aside.
        budgets: numbers of computed steps that the configuration was asked for.
        calls: measured here, from which shadows are made.
        spent: work of the shadows since measuring began.
        last: number of the latest picture.
        begun, seconds: when the measured picture has begun, and how long the latest one took.
        lock: held while this process measures the configuration.
        is_busy: whether a picture is measured or shadows are made now; hosts set it back.
    """

    shared: Shared
    configuration: Configuration
    budget: Budget
    tuning: Tuning
    pace: float = 1.0
    strategy: Strategy | None = None
    full_every: int | None = None
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
    def runs(self) -> float:
        """Work of full runs and shadows, in full runs of one call."""
        return len(self.calls) + (0.0 if self.trials is None else self.trials.runs)

    @property
    def work(self) -> Work:
        """Work of a picture with every step computed."""
        return work_of(self.pace * len(self.budget.noises), self.budget.elements)

    @property
    def share(self) -> float:
        """The share of steps that are computed if the picture is not measured."""
        plan = None if self.profile is None or self.strategy is None else self.budget.plan_of(self.profile.plans)
        return len(self.budget.untuned_steps if plan is None else plan.steps) / len(self.budget.noises)

    @property
    def is_whole(self) -> bool:
        """Whether all pictures are measured, and nothing is decided. Pictures of one call do not judge each other."""
        is_judged = not self.budget.aim or len(self.calls) > 1
        return self.tuning.state == "measuring" and self.tuning.pictures >= self.tuning.wanted and is_judged

    @property
    def is_idle(self) -> bool:
        """Whether only shadows are missing, and nobody is working on it."""
        return self.is_whole and not self.is_busy

    @property
    def is_due(self) -> bool:
        """Whether the next picture is to be measured."""
        return self.tuning.state == "measuring" and not (self.is_busy or self.is_whole)

    @property
    def may_measure(self) -> bool:
        """Whether the ledger allows the next picture in full, with the shadows that are due after it."""
        tried = 0 if self.trials is None else self.trials.tried
        return self._allows((len(self.calls) + 1 - tried if self.products else 0) * MOST_WORK, full=1)

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
            self.pace = self.shared.ledger.pace = max(calls / len(self.budget.noises), 1.0)
            self.shared.ledger.made(self.work, 1.0 if is_full else self.share)

    def start(self) -> None:
        """Begin to measure a picture, until the host says that the entry is no longer busy."""
        self.is_busy, self.begun = True, time.monotonic()
        if self.calls or self.failures:
            return
        missing = self.tuning.wanted - self.tuning.pictures
        logger.info(
            "tuning %s for runs of %d steps: the %s, then %s",
            "goes on" if self.earlier else "begins",
            len(self.budget.noises),
            "next picture is computed in full" if missing == 1 else f"next {missing} pictures are computed in full",
            self.budget.words,
        )
        if self.tuning.near:
            logger.info("%s", self.tuning.near)

    def learn(self, recording: Recording, replay: Any) -> bool:
        """Note a measured call, or why that failed. The calls of few configurations are kept with this one.

        Args:
            recording: of its values.
            replay: from which the host makes the call again.

        Returns:
            Whether shadows are made beside it. The first call of all takes its usual time.
        """
        shared = self.shared
        failure = shared.own_work.error_of(lambda: self._keep(MeasuredCall(replay=replay, full=FullRun.of(recording))))
        if (failure := shared.agreement.of_any(failure)) is not None:
            self.failed(failure)
            return False
        return self.tuning.state == "measuring" and len(self.products) > 1

    def _keep(self, call: MeasuredCall) -> None:
        shared = self.shared
        with shared.lock:
            if self.tuning.state != "measuring":  # it was ended meanwhile
                return
            self.seconds = time.monotonic() - self.begun
            self.calls.append(call)
            if shared.agreement.is_first:
                shared.store.keep_measured(self.configuration, self.products[-MOST_KEPT:], self.budgets)
            self.note()
            entries = shared.entries.values()
            others = sorted((each for each in entries if each.calls and not each.is_busy), key=lambda each: each.last)
            for each in others[: max(len(others) + 1 - MOST_MEASURED, 0)]:
                each._set_aside()

    def _set_aside(self) -> None:
        """Drop the calls. What they have shown stays, and one more picture makes shadows possible again."""
        self.earlier = self.products[-MOST_KEPT:]
        is_even = self.trials is not None and self.trials.let_go(len(self.calls))
        self.calls, self.trials = [], self.trials if is_even else None
        logger.info("pictures of a configuration are set aside: %d others are measured", MOST_MEASURED)
        self.note()

    def go_on(self, shadows: Shadows) -> None:
        """Make the shadows that are due and that the ledger allows; once all pictures are measured, decide. After an
        interrupt measuring begins anew."""
        try:
            finished(self.going_on(shadows))
        except BaseException as error:
            self.begin_anew(f"the trial runs were interrupted ({type(error).__name__})")
            raise

    def going_on(self, shadows: Shadows) -> Pausing[None]:
        """The work of `go_on` in parts, between which the host may pause."""
        agreement = self.shared.agreement
        waits, failure = yield from self._tried(shadows)
        if (failure := agreement.of_any(failure)) is not None:
            self.failed(failure)
            return
        self.failures = 0
        if waits or not self.is_whole:
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

    def _tried(self, shadows: Shadows) -> Pausing[tuple[str, OmniReuseError | None]]:
        """Make the shadows that are due; return why others wait, and the error of a shadow, which ends no picture."""
        try:
            with self.shared.own_work():
                return (yield from self._trying(shadows)), None
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
                # The other ranks have not met it. They would wait for this one in the next shadow or forward pass.
                raise
            self.failed(error)

    def _trying(self, shadows: Shadows) -> Pausing[str]:
        """Make the shadows that are due; return why others wait, empty if none do."""
        is_slow = self.shared.agreement.of_first(lambda: self.seconds > SLOW and not self.shared.measures_all)
        if self.trials is None:
            self.trials = trying(self.budget, self.calls, self.earlier)
            if REFERENCES in self.configuration.call and not self.budget.aim:
                self.trials = LeanTrials(self.trials, self.budget)
        trials = self.trials
        while (due := trials.due(self.calls, is_whole=self.is_whole)) is not None:
            if not self._allows(due.cost):
                return self.budget.waits
            shadows.announce(f"omnireuse tries {due.words}, for the pictures after this one")
            before = trials.runs
            yield from due.make(shadows)
            self._spend((trials.runs - before) * self.work)
            if is_slow and due.cost and trials.due(self.calls, is_whole=self.is_whole) is not None:
                return "a run takes long, so plans are tried one after each picture"
        return ""

    def _spend(self, work: Work) -> None:
        if not self.shared.measures_all:
            self.spent = self.spent + work
            self.shared.ledger.spend(work)

    def _decided(self) -> tuple[Profile, Plan, str | None]:
        """Decide, and keep the plan: the profile with it, the plan, and the file."""
        trials, store = self.trials, self.shared.store
        known = store.load(self.configuration.digest)
        assert trials is not None, "they were made"
        if known is not None and (theirs := self.budget.plan_of(known.plans)) is not None:
            # Another replica was first: one plan for all.
            return known, theirs, str(store.file(self.configuration.digest))
        plan = trials.decided(self.budget.untuned_steps)
        assert plan.evidence is not None, "it was tried"
        plan = msgspec.structs.replace(plan, evidence=msgspec.structs.replace(plan.evidence, runs=round(self.runs, 2)))
        profile = self.configuration.profile(
            self.budget.beside(known.plans if known is not None else {}, plan),
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
        """Drop what was measured, and begin anew unless that is known to be in vain. `what` begins the reason."""
        with self.shared.lock:
            self.failures += 1
            if isinstance(error, (NotTunableError, UnsupportedModelError)) or self.failures >= MOST_FAILURES:
                self.end("failed", f"{what}{error}")
                return
            self.begin_anew(f"{what}{error}")

    def broken_off(self, error: BaseException) -> None:
        """Handle the error of a picture that was being measured. An interrupt says nothing about the pipeline."""
        if isinstance(error, Exception):
            self.failed(StateError(f"a picture has failed ({type(error).__name__})"))
        else:
            self.begin_anew("it was interrupted")

    def begin_anew(self, why: str) -> None:
        """Drop what was measured; the next picture is measured anew. Its trial runs do not count as a failure."""
        with self.shared.lock:
            self.drop()
            self.earlier = []
            self.shared.ledger.spend(-self.spent)
            self.spent = work_of(0, 0)
            if self.shared.agreement.is_first:
                self.shared.store.forget_measured(self.configuration.digest)
            logger.info("measuring begins anew with the next picture: %s", why)
            self.note()

    def end(self, state: Literal["off", "failed"], why: str) -> None:
        """Stop measuring, and drop what was measured; the untuned default is used."""
        self.drop()
        self.profile = self.strategy = self.full_every = None
        self.tuning = replace(self.tuning, state=state, pictures=0, runs=0.0, reason=why)
        self.release()
        (logger.warning if state == "failed" else logger.info)("%s", self.tuning)

    def note(self, reason: str | None = None) -> None:
        """Say in `tuning` how much is measured, and why it goes on."""
        # Shadows need a call of this process: one picture at least is still to be measured, and what is asked of
        # pictures is judged by all of them.
        most = 0 if self.budget.aim else self.shared.pictures - 1
        pictures = min(sum(len(each.products) for each in self.earlier), most)
        pictures += sum(call.full.pictures for call in self.calls)
        reason = self.tuning.reason if reason is None else reason
        self.tuning = replace(self.tuning, pictures=pictures, runs=round(self.runs, 2), reason=reason)

    def drop(self) -> None:
        """Drop the values that were measured."""
        self.calls, self.trials = [], None

    def release(self) -> None:
        """Let other processes measure."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None
