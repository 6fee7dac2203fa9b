"""The configurations that a process tunes, whatever host makes its runs: what is measured, tried, decided and kept."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from omnireuse.base.validation import counted, in_words
from omnireuse.errors import UnsupportedModelError
from omnireuse.loop.agreement import Agreement
from omnireuse.planning.path import OutputProducts
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.profile import Profile
from omnireuse.summary.tuning import BEGINS, Tuning
from omnireuse.tuning.budget import JUDGED, Budget
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entry import Entry
from omnireuse.tuning.fewest import FewestSteps
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.ledger import Ledger, work_of
from omnireuse.tuning.recording import Recording
from omnireuse.tuning.store import Store
from omnireuse.tuning.trials import MOST_WORK, MeasuredCall, Pausing, Shadows, Trials, finished

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
MOST_BUDGETS = 2
"""Numbers of computed steps for one configuration, from which on a new one is measured from its second picture on."""
SLOW = 120.0
"""Seconds of a measured picture, from which on shadows are made one at a time, each after another picture."""


class _Found(NamedTuple):
    """What the store has for an entry."""

    profile: Profile | None = None
    plan: Plan | None = None
    passed_by: str = ""
    """Why it is not measured now."""
    earlier: list[OutputProducts] = []  # noqa: RUF012  # it is never changed
    budgets: frozenset[int] = frozenset()


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
    """

    def __init__(self, *, pictures: int, store: Store, command: str, agreement: Agreement | None = None) -> None:
        self.pictures, self._store, self._command = pictures, store, command
        self._agreement, self._ledger = agreement or Agreement(), Ledger()
        self._measures_all = False
        self.lock = threading.RLock()
        self._entries: dict[tuple[str, int], Entry] = {}
        self._seen: set[str] = set()
        self._said: set[tuple[tuple[str, int], str]] = set()
        self._numbers = itertools.count(1)

    def measure_all(self) -> None:
        """Measure as many pictures as are wanted, whatever is known and whatever it costs."""
        self._measures_all = True

    def find(self, configuration: Configuration, budget: Budget) -> Entry:
        """The entry of a run: "ready" with a plan of the store; else "measuring".

        It is "off" for this picture as long as another pipeline or process measures; where the ledger does not allow
        more; and where a user seems to change an argument with every picture: for the first picture of a configuration
        beside `MOST_UNFINISHED` that are measured in part, or of a number of computed steps beside `MOST_BUDGETS`.
        """
        if budget.aim:
            aim = {name: repr(value) for name, value in (*budget.aim.items(), ("judged", JUDGED))}
            configuration = msgspec.structs.replace(configuration, call={**configuration.call, **aim})
        key = (configuration.digest, len(budget.steps))
        entry = self._entries.get(key) or self._new(key, configuration, budget)
        entry.budget, entry.last = budget, next(self._numbers)
        if entry.tuning.state == "measuring" and not (entry.is_busy or entry.is_whole or self._may_measure(entry)):
            return self._passed_by(entry, f"{entry.waits}; it is measured once reuse has saved enough")
        return entry

    def _new(self, key: tuple[str, int], configuration: Configuration, budget: Budget) -> Entry:
        computes_all = budget.quality is not None
        wanted = budget.pictures(self.pictures)
        is_sure = budget.reuses and not budget.aim
        tuning = Tuning(state="measuring", wanted=wanted, computes_all=computes_all, reason=BEGINS, is_sure=is_sure)
        entry = Entry(configuration, budget, tuning, pace=self._ledger.pace)
        found = self._agreement.of_first(lambda: self._found(entry))
        if found.passed_by:
            entry.release()
            return self._passed_by(entry, found.passed_by)
        self._entries[key] = entry
        if found.profile is not None and found.plan is not None:
            self._take(entry, found.profile, found.plan, str(self._store.file(configuration.digest)))
        else:
            entry.earlier, entry.budgets = found.earlier, found.budgets | {len(budget.steps)}
            entry.tuning = replace(tuning, near=self._store.near(configuration))
            self._note(entry)
        return entry

    def _passed_by(self, entry: Entry, why: str) -> Entry:
        """What serves one picture untuned; the next one of the configuration looks again."""
        passed = replace(entry, tuning=replace(entry.tuning, state="off", reason=why), calls=[], trials=None, lock=None)
        said = (entry.configuration.digest, len(entry.budget.steps)), why
        if said not in self._said:
            self._said.add(said)
            logger.info("%s", passed.tuning)
        return passed

    def _may_measure(self, entry: Entry) -> bool:
        """Whether the ledger allows the next picture in full, with the shadows that are due after it."""
        tried = 0 if entry.trials is None else entry.trials.tried
        due = len(entry.calls) + 1 - tried if entry.products else 0
        return self._allows(entry, due * MOST_WORK, full=1)

    def _allows(self, entry: Entry, runs: float, full: int = 0) -> bool:
        if self._measures_all:
            return True
        return self._ledger.allows(
            runs * entry.work, entry.work, entry.expected_share, full=full, by=entry.budget.settled
        )

    def _found(self, entry: Entry) -> _Found:
        """What the store has for an entry, whose lock is taken where it has no plan."""
        digest, count = entry.configuration.digest, len(entry.budget.steps)
        known = self._store.load(digest)
        plan = None if known is None else entry.budget.plan_of(known.plans)
        if plan is not None:
            return _Found(profile=known, plan=plan)
        entry.lock = self._store.lock(digest)
        if entry.lock is None:
            return _Found(passed_by="another pipeline or process measures it, and its plan serves here once it is kept")
        if self._measures_all:
            return _Found()
        earlier, budgets = self._store.measured(digest)
        if digest not in self._seen and digest not in (begun := self._store.begun()) and known is None:
            begun_here = [each for each in self._entries.values() if each.tuning.state == "measuring" and each.calls]
            unfinished = {each.configuration.digest for each in begun_here}
            if len(unfinished | begun) >= MOST_UNFINISHED:
                self._seen.add(digest)
                self._store.keep_measured(entry.configuration, [], budgets)
                others = f"{MOST_UNFINISHED} other configurations are measured in part"
                return _Found(passed_by=f"{others}; this one is measured from its second picture on")
        if count not in budgets and len(budgets) >= MOST_BUDGETS:
            self._store.keep_measured(entry.configuration, earlier, budgets | {count})
            others = f"{MOST_BUDGETS} other numbers of computed steps were asked for"
            return _Found(passed_by=f"{others}; this one is measured from its second picture on")
        return _Found(earlier=earlier, budgets=budgets)

    def made(self, entry: Entry, calls: int, *, is_full: bool) -> None:
        """Note a picture in the ledger.

        Args:
            entry: of its run, as `find` gave it.
            calls: of the denoiser, made or reused.
            is_full: whether every step was computed because it was measured.
        """
        with self.lock:
            entry.pace = self._ledger.pace = max(calls / len(entry.budget.noises), 1.0)
            self._ledger.made(entry.work, 1.0 if is_full else entry.share)

    def start(self, entry: Entry) -> None:
        """A picture is being measured, until the host says that the entry is busy no more."""
        entry.is_busy, entry.begun = True, time.monotonic()
        if entry.calls or entry.failures:
            return
        missing = entry.tuning.wanted - entry.tuning.pictures
        logger.info(
            "tuning %s for runs of %d steps: the %s, then %s",
            "goes on" if entry.earlier else "begins",
            len(entry.budget.noises),
            "next picture is computed in full" if missing == 1 else f"next {missing} pictures are computed in full",
            entry.budget.words,
        )
        if entry.tuning.near:
            logger.info("%s", entry.tuning.near)

    def learn(self, entry: Entry, kept: Recording, full_run: Callable[[], FullRun], replay: Any) -> bool:
        """Note a measured call, or why that failed. The calls of few configurations are kept with this one.

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
            self.failed(entry, in_words(error), isinstance(error, UnsupportedModelError))
            return False
        with self.lock:
            entry.seconds = time.monotonic() - entry.begun
            entry.calls.append(call)
            if self._agreement.is_first:
                self._store.keep_measured(entry.configuration, entry.products[-MOST_KEPT:], entry.budgets)
            self._note(entry)
            others = [each for each in self._entries.values() if each.calls and not each.is_busy and each is not entry]
            others.sort(key=lambda each: each.last)
            for each in others[: max(len(others) + 1 - MOST_MEASURED, 0)]:
                self._set_aside(each)
        return len(entry.products) > 1

    def _set_aside(self, entry: Entry) -> None:
        """Drop the calls of an entry. What they have shown stays, and one more picture makes shadows possible again."""
        entry.earlier = entry.products[-MOST_KEPT:]
        is_even = entry.trials is not None and entry.trials.let_go(len(entry.calls))
        entry.calls, entry.trials = [], entry.trials if is_even else None
        logger.info("pictures of a configuration are set aside: %d others are measured", MOST_MEASURED)
        self._note(entry)

    def whole(self) -> list[Entry]:
        """The entries of which nothing but shadows is missing, and that nobody is at work on."""
        return [entry for entry in self._entries.values() if entry.is_whole and not entry.is_busy]

    def go_on(self, entry: Entry, shadows: Shadows) -> None:
        """Make the shadows that are due and that the ledger allows; decide where all pictures are measured."""
        finished(self.going_on(entry, shadows))

    def going_on(self, entry: Entry, shadows: Shadows) -> Pausing[None]:
        """As `go_on`, with the pauses of the host's shadows."""
        failure: tuple[str, bool] | None = None
        is_slow = self._agreement.of_first(lambda: entry.seconds > SLOW and not self._measures_all)
        waits = ""
        try:
            if entry.trials is None:
                budget, earlier = entry.budget, entry.earlier
                entry.trials = FewestSteps(budget, earlier) if budget.aim else Trials(budget, entry.calls, earlier)
            trials = entry.trials
            while not waits and (due := trials.due(entry.calls, is_whole=entry.is_whole)) is not None:
                if not self._allows(entry, due.cost):
                    waits = entry.waits
                    break
                shadows.announce(f"omnireuse tries {due.words}, for the pictures after this one")
                before = trials.runs
                yield from due.make(shadows)
                self._spend(entry, trials.runs - before)
                if is_slow and due.cost and trials.due(entry.calls, is_whole=entry.is_whole) is not None:
                    waits = "a run takes long, so plans are tried one after each picture"
        except Exception as error:  # the picture is done, and must not fail because a shadow does
            failure = in_words(error), isinstance(error, UnsupportedModelError)
        if (failure := self._agreement.of_any(failure)) is not None:
            self.failed(entry, *failure)
            return
        entry.failures = 0
        if waits or not entry.is_whole:
            entry.tuning = replace(entry.tuning, reason=waits or BEGINS)
            self._note(entry)
            return
        decided = self._agreement.of_first(lambda: self._tried(entry))
        if isinstance(decided, str):
            self.failed(entry, decided, is_permanent=True)
            return
        self._take(entry, *decided)
        logger.info("tuning has ended for calls with %s: %s", entry.configuration.words, entry.tuning)
        entry.drop()
        entry.release()

    def _spend(self, entry: Entry, runs: float) -> None:
        if not self._measures_all:
            work = runs * entry.work
            entry.spent = entry.spent + work
            self._ledger.spend(work)

    def failed(self, entry: Entry, why: str, is_permanent: bool = False) -> None:
        """What was measured is dropped; the next picture measures anew, unless that is known to be in vain."""
        with self.lock:
            entry.failures += 1
            if is_permanent or entry.failures >= MOST_FAILURES:
                entry.drop()
                self.end(entry, "failed", why)
                return
            self.begin_anew(entry, why)

    def begin_anew(self, entry: Entry, why: str) -> None:
        """What was measured is dropped, and the next picture measures anew. Its shadows are not held against it."""
        with self.lock:
            entry.drop()
            entry.earlier = []
            self._ledger.spend(-entry.spent)
            entry.spent = work_of(0, 0)
            if self._agreement.is_first:
                self._store.forget_measured(entry.configuration.digest)
            logger.info("measuring begins anew with the next picture: %s", why)
            self._note(entry)

    def end(self, entry: Entry, state: str, why: str) -> None:
        """Measure no more; the untuned default is used."""
        entry.tuning = replace(entry.tuning, state=state, pictures=0, runs=0.0, reason=why)  # type: ignore[arg-type]  # one of the two
        entry.release()
        (logger.warning if state == "failed" else logger.info)("%s", entry.tuning)

    def close(self) -> None:
        """Drop what was measured, and let other processes measure."""
        with self.lock:
            for entry in self._entries.values():
                entry.drop()
                entry.release()

    def _tried(self, entry: Entry) -> tuple[Profile, Plan, str | None] | str:
        """`_decided`, or why that failed: the picture is done, and must not fail because of it."""
        try:
            return self._decided(entry)
        except Exception as error:
            return in_words(error)

    def _decided(self, entry: Entry) -> tuple[Profile, Plan, str | None]:
        """Decide, and keep the plan: the profile with it, the plan, and the file."""
        trials, known = entry.trials, self._store.load(entry.configuration.digest)
        assert trials is not None, "they were made"
        if known is not None and (theirs := entry.budget.plan_of(known.plans)) is not None:
            # Another replica was first: one plan for all.
            return known, theirs, str(self._store.file(entry.configuration.digest))
        # The untuned default is kept as well, so that the next process measures nothing again.
        plan = trials.plan() or Plan(
            steps=entry.budget.untuned_steps,
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
        is_own = plan.evidence is None or not plan.evidence.stays
        entry.strategy = plan.strategy(profile.coordinates) if is_own else None
        evidence, total = plan.evidence, profile.num_inference_steps
        expected, text = None, entry.budget.none_found
        if evidence is not None and is_own:
            expected = sum(evidence.errors) / len(evidence.errors)
            text = f"{len(plan.steps)} of {total} steps computed, "
            if evidence.closeness:
                mean = sum(evidence.closeness) / len(evidence.closeness)
                text += f"{entry.budget.quality:g} dB expected of nine of ten pictures, {mean:.1f} dB on average"
            else:
                text += f"{expected:.2%} error of the final latents expected"
            if evidence.untuned:
                text += f" ({sum(evidence.untuned) / len(evidence.untuned):.2%} untuned)"
        pictures = profile.num_prompts[0]
        text += f", on {counted(pictures, 'measured picture')}"
        entry.tuning = replace(
            entry.tuning,
            state="ready",
            pictures=pictures,
            runs=0.0 if evidence is None else evidence.runs,
            expected=expected,
            path=path,
            reason=text,
        )

    @staticmethod
    def _runs(entry: Entry) -> float:
        return len(entry.calls) + (0.0 if entry.trials is None else entry.trials.runs)

    def _note(self, entry: Entry) -> None:
        # Shadows need a call of this process: one picture at least is still to be measured, and what is asked of
        # pictures is judged by all of them.
        earlier = 0 if entry.budget.aim else min(sum(len(each.products) for each in entry.earlier), self.pictures - 1)
        pictures = earlier + sum(call.full.pictures for call in entry.calls)
        entry.tuning = replace(entry.tuning, pictures=pictures, runs=round(self._runs(entry), 2))
