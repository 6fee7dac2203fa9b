"""The configurations that a process tunes, whatever host makes its runs: what is measured, tried, decided and kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from omnireuse.base.validation import counted
from omnireuse.errors import UnsupportedModelError
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.path import OutputProducts
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.profile import Profile
from omnireuse.tuning.budget import Budget
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.fewest import FewestSteps
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.recording import Keeper
from omnireuse.tuning.state import Tuning
from omnireuse.tuning.store import Store
from omnireuse.tuning.trials import MeasuredCall, Pausing, Shadows, Trials, finished

__all__ = ["MOST_FAILURES", "Entries", "Entry"]

logger = logging.getLogger("omnireuse")

MOST_FAILURES = 3
"""Failures in a row that end tuning of a configuration."""
MOST_UNFINISHED = 3
"""Configurations measured in part, from which on a new one is measured from its second picture on."""
MOST_MEASURED = 4
"""Configurations whose pictures are kept at a time."""
MOST_KEPT = 3
"""Calls whose outputs' inner products are kept for plans of later processes."""


@dataclass(eq=False)
class Entry:
    """One configuration with one number of computed steps.

    Attributes:
        earlier: what earlier processes, or other numbers of computed steps, have measured of the configuration.
        calls: measured here, from which shadows are made.
    """

    configuration: Configuration
    budget: Budget
    tuning: Tuning
    strategy: Strategy | None = None
    profile: Profile | None = None
    earlier: list[OutputProducts] = field(default_factory=list)
    calls: list[MeasuredCall] = field(default_factory=list)
    trials: Trials | FewestSteps | None = None
    failures: int = 0
    lock: Any = None
    is_busy: bool = False

    @property
    def products(self) -> list[OutputProducts]:
        """What is known of the outputs of full runs, one for each call."""
        return [*self.earlier, *(call.full.products for call in self.calls)]


class _Found(NamedTuple):
    """What the store has for an entry."""

    profile: Profile | None = None
    plan: Plan | None = None
    is_locked: bool = False
    is_new: bool = False
    earlier: list[OutputProducts] = []  # noqa: RUF012  # it is never changed


class Entries:
    """The entries of one process. A host finds the entry of each run, hands in what it has measured, and makes shadows.

    Args:
        pictures: how many are measured at most, ≥ 1.
        store: keeps plans.
        command: what made a plan, for its file.
        agreement: of ranks that share a forward pass: they make the same shadows and follow the first one's plan, which
            alone reads and writes files. Alone by default.

    Attributes:
        lock: guards the entries.
        goes_on: whether what earlier processes have measured counts.
    """

    def __init__(self, *, pictures: int, store: Store, command: str, agreement: Agreement | None = None) -> None:
        self.pictures, self._store, self._command = pictures, store, command
        self._agreement = agreement or Agreement()
        self.goes_on = True
        self.lock = threading.RLock()
        self._entries: dict[tuple[str, int], Entry] = {}
        self._seen: set[str] = set()
        self._said: set[tuple[tuple[str, int], str]] = set()

    def find(self, configuration: Configuration, budget: Budget) -> Entry:
        """The entry of a run: "ready" with a plan of the store; else "measuring".

        It is "off" as long as another pipeline or process measures, and for the first picture of a configuration where
        `MOST_UNFINISHED` others are measured in part: a user who changes an argument with every picture reuses, too.
        """
        if budget.aim:
            aim = {name: repr(value) for name, value in budget.aim.items()}
            configuration = msgspec.structs.replace(configuration, call={**configuration.call, **aim})
        key = (configuration.digest, len(budget.steps))
        if key in self._entries:
            return self._entries[key]
        entry = self._entries[key] = Entry(
            configuration,
            budget,
            Tuning(
                state="measuring",
                wanted=self.pictures,
                computes_all=budget.quality is not None,
                reason="the first pictures are measured",
            ),
        )
        found = self._agreement.of_first(lambda: self._found(entry))
        if found.profile is not None and found.plan is not None:
            self._take(entry, found.profile, found.plan, str(self._store.file(configuration.digest)))
        elif found.is_locked:
            self._pass_by(key, "another pipeline or process measures it, and its plan serves here once it is kept")
        elif found.is_new:
            others = f"{MOST_UNFINISHED} other configurations are measured in part"
            self._pass_by(key, f"{others}; this one is measured from its second picture on")
        else:
            entry.earlier = found.earlier
            self._note(entry)
        return entry

    def _pass_by(self, key: tuple[str, int], why: str) -> None:
        """Serve one picture untuned; the next one of the configuration looks again."""
        entry = self._entries.pop(key)
        entry.tuning = replace(entry.tuning, state="off", reason=why)
        self._release(entry)
        if (key, why) not in self._said:
            self._said.add((key, why))
            logger.info("%s", entry.tuning)

    def _found(self, entry: Entry) -> _Found:
        """What the store has for an entry, whose lock is taken where it has no plan."""
        digest = entry.configuration.digest
        known = self._store.load(digest)
        plan = None if known is None else entry.budget.plan_of(known.plans)
        if plan is not None:
            return _Found(profile=known, plan=plan)
        entry.lock = self._store.lock(digest)
        if entry.lock is None:
            return _Found(is_locked=True)
        if not self.goes_on:
            return _Found()
        if digest not in self._seen and digest not in (begun := self._store.begun()):
            begun_here = [each for each in self._entries.values() if each.tuning.state == "measuring" and each.calls]
            unfinished = {each.configuration.digest for each in begun_here}
            if len(unfinished | begun) >= MOST_UNFINISHED:
                self._seen.add(digest)
                self._store.keep_measured(entry.configuration, [])
                return _Found(is_new=True)
        return _Found(earlier=self._store.measured(digest))

    def start(self, entry: Entry) -> None:
        """A picture is being measured, until the host says that the entry is busy no more."""
        entry.is_busy = True
        if entry.calls or entry.failures:
            return
        missing = self.pictures - entry.tuning.pictures
        logger.info(
            "tuning %s for runs of %d steps: the %s, then %s",
            "goes on" if entry.earlier else "begins",
            len(entry.budget.noises),
            "next picture is computed in full" if missing == 1 else f"next {missing} pictures are computed in full",
            entry.budget.words,
        )

    def learn(self, entry: Entry, kept: Keeper, full_run: Callable[[], FullRun], replay: Any) -> bool:
        """Note a measured call, or why that failed. Few configurations are kept with this one: the eldest are dropped.

        Args:
            kept: what became of keeping its values.
            full_run: makes something of them.
            replay: from which the host makes the call again.

        Returns:
            Whether shadows are made beside it. The first call of all takes its usual time.
        """
        if kept.failure is not None:
            self.failed(entry, kept.failure, kept.is_permanent)
            return False
        try:
            call = MeasuredCall(replay=replay, full=full_run())
        except Exception as error:  # the picture is done, and must not fail because measuring it does
            self.failed(entry, f"{type(error).__name__}: {error}", isinstance(error, UnsupportedModelError))
            return False
        with self.lock:
            entry.calls.append(call)
            if self._agreement.is_first:
                self._store.keep_measured(entry.configuration, entry.products[-MOST_KEPT:])
            self._note(entry)
            others = [each for each in self._entries.values() if each.calls and not each.is_busy and each is not entry]
            for each in others[: max(len(others) + 1 - MOST_MEASURED, 0)]:
                self.begin_anew(each, f"{MOST_MEASURED} other configurations are measured")
        return len(entry.products) > 1

    def is_whole(self, entry: Entry) -> bool:
        """Whether all pictures are measured, and nothing is decided."""
        return entry.tuning.state == "measuring" and entry.tuning.pictures >= self.pictures

    def whole(self) -> list[Entry]:
        """The entries of which nothing but shadows is missing, and that nobody is at work on."""
        return [entry for entry in self._entries.values() if self.is_whole(entry) and not entry.is_busy]

    def go_on(self, entry: Entry, shadows: Shadows) -> None:
        """Make the shadows that are due; decide where all pictures are measured."""
        finished(self.going_on(entry, shadows))

    def going_on(self, entry: Entry, shadows: Shadows) -> Pausing[None]:
        """As `go_on`, with the pauses of the host's shadows."""
        failure: tuple[str, bool] | None = None
        try:
            if entry.trials is None:
                budget, earlier = entry.budget, entry.earlier
                entry.trials = FewestSteps(budget, earlier) if budget.aim else Trials(budget, entry.calls, earlier)
            yield from entry.trials.run(entry.calls, shadows, is_whole=self.is_whole(entry))
        except Exception as error:  # the picture is done, and must not fail because a shadow does
            failure = f"{type(error).__name__}: {error}", isinstance(error, UnsupportedModelError)
        if (failure := self._agreement.of_any(failure)) is not None:
            self.failed(entry, *failure)
            return
        entry.failures = 0
        if not self.is_whole(entry):
            self._note(entry)
            return
        decided = self._agreement.of_first(lambda: self._tried(entry))
        if isinstance(decided, str):
            self.failed(entry, decided, is_permanent=True)
            return
        self._take(entry, *decided)
        logger.info("tuning has ended: %s", entry.tuning)
        self.drop(entry)
        self._release(entry)

    def failed(self, entry: Entry, why: str, is_permanent: bool = False) -> None:
        """What was measured is dropped; the next picture measures anew, unless that is known to be in vain."""
        with self.lock:
            entry.failures += 1
            if is_permanent or entry.failures >= MOST_FAILURES:
                self.drop(entry)
                self.end(entry, "failed", why)
                return
            self.begin_anew(entry, why)

    def begin_anew(self, entry: Entry, why: str) -> None:
        """What was measured is dropped, and the next picture measures anew."""
        with self.lock:
            self.drop(entry)
            entry.earlier = []
            if self._agreement.is_first:
                self._store.forget_measured(entry.configuration.digest)
            logger.info("measuring begins anew with the next picture: %s", why)
            self._note(entry)

    def end(self, entry: Entry, state: str, why: str) -> None:
        """Measure no more; the untuned default serves."""
        entry.tuning = replace(entry.tuning, state=state, pictures=0, runs=0.0, reason=why)  # type: ignore[arg-type]  # one of the two
        self._release(entry)
        (logger.warning if state == "failed" else logger.info)("%s", entry.tuning)

    def close(self) -> None:
        """Drop what was measured, and let other processes measure."""
        with self.lock:
            for entry in self._entries.values():
                self.drop(entry)
                self._release(entry)

    @staticmethod
    def drop(entry: Entry) -> None:
        """Drop the values that were measured."""
        entry.calls, entry.trials = [], None

    def _tried(self, entry: Entry) -> tuple[Profile, Plan, str | None] | str:
        """`_decided`, or why that failed: the picture is done, and must not fail because of it."""
        try:
            return self._decided(entry)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _decided(self, entry: Entry) -> tuple[Profile, Plan, str | None]:
        """Decide, and keep the plan: the profile with it, the plan, and the file."""
        trials, known = entry.trials, self._store.load(entry.configuration.digest)
        assert trials is not None, "they were made"
        if known is not None and (theirs := entry.budget.plan_of(known.plans)) is not None:
            # Another replica was first: one plan for all.
            return known, theirs, str(self._store.file(entry.configuration.digest))
        # The untuned default is kept as well, so that the next process measures nothing again.
        plan = trials.plan() or Plan(
            steps=entry.budget.steps if entry.budget.reuses else tuple(range(len(entry.budget.noises))),
            forecaster="blend",
            psnr=None,
            held_out=(),
            evidence=trials.default_evidence(),
        )
        evidence = msgspec.structs.replace(plan.evidence or trials.default_evidence(), runs=round(self._runs(entry), 2))
        plan = msgspec.structs.replace(plan, evidence=evidence)
        profile = entry.configuration.profile(
            entry.budget.beside(known.plans if known is not None else {}, plan),
            coordinates=entry.budget.noises,
            pictures=entry.tuning.pictures,
            runs=entry.tuning.runs,
            command=self._command,
        )
        path = self._store.save(entry.configuration, profile)
        return profile, plan, None if path is None else str(path)

    def _take(self, entry: Entry, profile: Profile, plan: Plan, path: str | None) -> None:
        # Without a strategy of its own the untuned default serves.
        entry.profile = profile
        entry.strategy = plan.strategy(profile.coordinates) if plan.weights else None
        evidence, total = plan.evidence, profile.num_inference_steps
        expected, text = None, entry.budget.none_found
        if evidence is not None and plan.weights:
            expected = sum(evidence.errors) / len(evidence.errors)
            text = f"{len(plan.steps)} of {total} steps computed, "
            if evidence.closeness:
                mean = sum(evidence.closeness) / len(evidence.closeness)
                text += f"{entry.budget.quality:g} dB expected of nine of ten pictures, {mean:.1f} dB on average"
            else:
                text += f"{expected:.2%} error of the final latents expected"
            if evidence.untuned:
                text += f" ({sum(evidence.untuned) / len(evidence.untuned):.2%} untuned)"
        if evidence is not None:
            text += f", on {counted(len(evidence.errors), 'measured picture')}"
        entry.tuning = replace(
            entry.tuning,
            state="ready",
            pictures=len(evidence.errors) if evidence is not None else 0,
            runs=0.0 if evidence is None else evidence.runs,
            expected=expected,
            path=path,
            reason=text,
        )

    @staticmethod
    def _runs(entry: Entry) -> float:
        return len(entry.calls) + (0.0 if entry.trials is None else entry.trials.runs)

    def _note(self, entry: Entry) -> None:
        # Shadows need a call of this process, so one picture at least is still to be measured.
        earlier = min(sum(len(each.products) for each in entry.earlier), self.pictures - 1)
        pictures = earlier + sum(call.full.pictures for call in entry.calls)
        entry.tuning = replace(entry.tuning, pictures=pictures, runs=round(self._runs(entry), 2))

    @staticmethod
    def _release(entry: Entry) -> None:
        if entry.lock is not None:
            entry.lock.release()
            entry.lock = None
