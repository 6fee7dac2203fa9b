"""The counters of a session and their sums, built on its events."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from omnireuse.loop.events import Decision
from omnireuse.summary.summary import Audit, Promise, ReferenceCalls, Summary
from omnireuse.summary.tuning import Tuning

__all__ = ["RunRecord", "Stats", "Tally"]

logger = logging.getLogger("omnireuse")


KEPT_EVENTS = 20_000
CONCURRENT_RUNS = 256
BEYOND, STRAIGHT = 0.5, 0.4
"""Root mean square of the forecasts' errors, and mean heading, of runs in which forecasts gain little: missed by more
than half of the output, which kept less than 0.4 of its direction (``python -m bench harm``)."""


class Stats:
    """Counts decisions. They are put into `inbox` and counted when a figure is asked for or a run ends.

    Args:
        name: of the strategy, for the summary.
        promise: a profile's knowledge of it.
    """

    def __init__(self, name: str, promise: Promise | None = None) -> None:
        self.inbox: deque[Decision] = deque()
        """Takes decisions, in any thread."""
        self.observers: tuple[Callable[[Decision], None], ...] = ()
        """Called with every decision by whoever puts it into the inbox."""
        self._name, self._promise, self._given = name, promise, promise
        self._events: deque[Decision] = deque(maxlen=KEPT_EVENTS)
        self._lock = threading.RLock()
        self._records: dict[int, RunRecord] = {}
        self._ended = Tally()
        """Counts of whole runs."""
        self._apart = Tally()
        """Counts of aborted and broken runs."""
        self._fallbacks: Counter[str] = Counter()
        self._beside: dict[str, tuple[int, int]] = {}
        self._has_warned = False
        self._runs = self._aborted = self._broken = 0

    @property
    def events(self) -> tuple[Decision, ...]:
        """The latest decisions, at most 20,000."""
        with self._lock:
            self._count()
            return tuple(self._events)

    def subscribe(self, observer: Callable[[Decision], None]) -> Callable[[], None]:
        """Call `observer` with every decision from now on; the function returned ends it."""
        self.observers = (*self.observers, observer)

        def unsubscribe() -> None:
            self.observers = tuple(each for each in self.observers if each is not observer)

        return unsubscribe

    def end_run(self, number: int, *, is_whole: bool = True) -> RunRecord | None:
        """The record of a run that has ended; None if nothing was decided in it. One that is not whole, or broken,
        is counted apart."""
        with self._lock:
            self._count()
            record = self._records.pop(number, None)
            if record is not None:
                self._settle(record, is_whole)
            return record

    def _settle(self, record: RunRecord, is_whole: bool) -> None:
        record.end_step()
        is_apart = record.is_broken or not is_whole
        self._runs += 1
        self._broken += record.is_broken
        self._aborted += not record.is_broken and not is_whole
        (self._apart if is_apart else self._ended).add(record.tally)

    def mark_broken(self, number: int) -> None:
        """The latents of this run, which is about to end, are NaN or infinite."""
        with self._lock:
            self._count()
            if number in self._records:
                self._records[number].is_broken = True

    @property
    def is_judged(self) -> bool:
        """True if held-out prompts have shown a quality that can be promised."""
        return self._promise is not None and math.isfinite(self._promise.tenth)

    def withdraw(self, but: str) -> None:
        """Promise nothing from now on; `but` says why. The first reason stays."""
        with self._lock:
            if self._promise is not None and self._promise.but is None:
                self._promise = replace(self._promise, but=but)

    def renew(self) -> None:
        """Renew the first promise: the runs so far count no more, those from now on do."""
        with self._lock:
            self._count()
            self._promise = self._given

    def fell_back(self, on: str) -> None:
        """Count a fallback, by its strategy."""
        with self._lock:
            self._fallbacks[on] += 1

    def count_beside(self, calls: Mapping[str, tuple[int, int]]) -> None:
        """Count calls of the denoiser's companions, by name: those made, and all."""
        with self._lock:
            for name, (made, every) in calls.items():
                before = self._beside.get(name, (0, 0))
                self._beside[name] = before[0] + made, before[1] + every

    def _count(self) -> None:
        while self.inbox:
            self._count_one(self.inbox.popleft())

    def _count_one(self, decision: Decision) -> None:
        self._events.append(decision)
        record = self._records.get(decision.run)
        if record is None:
            if len(self._records) == CONCURRENT_RUNS:
                self._settle(self._records.pop(next(iter(self._records))), is_whole=True)
            record = self._records[decision.run] = RunRecord(total=decision.total)
        if record.step != decision.step:
            record.end_step()
            record.tally.steps += 1
            record.step = decision.step
        record.decided[decision_in_words(decision)] += 1
        record.tally.count(decision)
        if decision.reused:
            record.has_reused = True
        else:
            record.computed[decision.reason] += 1
            if decision.measured is not None and decision.reason == "policy":
                known = decision.measured if record.smallest is None else record.smallest
                record.smallest = min(known, decision.measured)
        promise = self._promise
        if promise is not None and not record.is_unlike and not promise.covers(decision):
            record.is_unlike = True
            self._fallbacks["the default's plan"] += 1
            is_as_long = decision.total in (None, len(promise.coordinates))
            differ = "other noise levels" if is_as_long else f"{decision.total} steps"
            but = f"a run has {differ}, the profile was measured on runs of {len(promise.coordinates)} steps"
            self.withdraw(but)
            if not self._has_warned:
                self._has_warned = True
                logger.warning("%s: %s: the default's steps are computed, and nothing is promised", self._name, but)

    def summary(
        self,
        *,
        kept_bytes: int,
        calls_outside: int = 0,
        audits: tuple[Audit, ...] = (),
        tuning: Tuning | None = None,
        references: ReferenceCalls | None = None,
    ) -> Summary:
        """The summary so far, with figures of others."""
        with self._lock:
            self._count()
            whole, every = Tally(), Tally()
            whole.add(self._ended)
            for record in self._records.values():
                whole.add(record.tally)
                whole.share(record.decided)
            for tally in (whole, self._apart):
                every.add(tally)
            runs = self._runs + len(self._records)
            calls, ended = every.computed + every.reused, max(runs - self._aborted - self._broken, 1)
            mean_steps = whole.steps / ended
            computed = sum(share for words, share in whole.steps_by_reason.items() if words.startswith("computed"))
            compared, errors, worst = whole.errors
            return Summary(
                name=self._name,
                runs=runs,
                steps=every.steps,
                calls=calls,
                computed_calls=every.computed,
                reused_calls=every.reused,
                computed_steps=computed / ended,
                step_ratio=whole.steps / computed if computed else 1.0,
                reasons=dict(every.reasons),
                steps_by_reason=dict(every.steps_by_reason),
                mean_error=errors / compared if compared else None,
                worst_error=worst if compared else None,
                is_beyond=whole.is_beyond,
                promise=self._promise,
                promise_holds=self._promise is None or self._promise.but is None,
                host_seconds=every.host_seconds / calls if calls else 0.0,
                kept_bytes=kept_bytes,
                calls_outside=calls_outside,
                fallbacks=dict(self._fallbacks),
                last_run=self._last_run(),
                mean_steps=mean_steps,
                aborted=self._aborted,
                broken=self._broken,
                beside=dict(self._beside),
                audits=audits,
                tuning=tuning,
                references=references,
            )

    def _last_run(self) -> tuple[float | None, ...]:
        latest = self._events[-1].run if self._events else None
        computed: dict[int, list[bool]] = {}
        for event in self._events:
            if event.run == latest:
                computed.setdefault(event.step, []).append(not event.reused)
        return tuple(
            sum(computed[step]) / len(computed[step]) if step in computed else None
            for step in range(max(computed, default=-1) + 1)
        )


@dataclass
class Tally:
    """Sums over decisions.

    Attributes:
        steps, computed, reused: steps with a decision, and decisions by their kind.
        reasons: number of decisions for each reason, separately for computed and reused ones.
        steps_by_reason: the same in steps. A step whose calls were decided apart counts by their shares.
        errors: of the forecasts that could be compared: their number, sum and largest.
        squares: sum of the squares of those errors.
        headings: of the decisions that have one: their number and sum.
        host_seconds: of all decisions together.
    """

    steps: int = 0
    computed: int = 0
    reused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    steps_by_reason: dict[str, float] = field(default_factory=dict)
    errors: tuple[int, float, float] = (0, 0.0, 0.0)
    squares: float = 0.0
    headings: tuple[int, float] = (0, 0.0)
    host_seconds: float = 0.0

    @property
    def is_beyond(self) -> bool:
        """`Summary.is_beyond`."""
        (compared, squares), (headed, headings) = (self.errors[0], self.squares), self.headings
        return self.reused > 0 and squares > compared * BEYOND**2 and headings < headed * STRAIGHT

    def count(self, decision: Decision) -> None:
        """Add one decision, but for its step."""
        self.computed += not decision.reused
        self.reused += decision.reused
        self.reasons[decision_in_words(decision)] += 1
        self.host_seconds += decision.host_seconds
        if decision.error is not None:
            number, total, worst = self.errors
            self.errors = number + 1, total + decision.error, max(worst, decision.error)
            self.squares += decision.error**2
        if decision.heading is not None:
            self.headings = self.headings[0] + 1, self.headings[1] + decision.heading

    def share(self, decided: Mapping[str, int]) -> None:
        """Add a step with so many decisions of each kind."""
        for words, number in decided.items():
            self.steps_by_reason[words] = self.steps_by_reason.get(words, 0.0) + number / sum(decided.values())

    def add(self, other: Tally) -> None:
        """Add another's counts."""
        self.steps += other.steps
        self.computed += other.computed
        self.reused += other.reused
        self.reasons += other.reasons
        for words, share in other.steps_by_reason.items():
            self.steps_by_reason[words] = self.steps_by_reason.get(words, 0.0) + share
        self.host_seconds += other.host_seconds
        (number, total, worst), (more, sum_of_more, worst_of_more) = self.errors, other.errors
        self.errors = number + more, total + sum_of_more, max(worst, worst_of_more)
        self.squares += other.squares
        self.headings = self.headings[0] + other.headings[0], self.headings[1] + other.headings[1]


@dataclass
class RunRecord:
    """The decisions of one run.

    Attributes:
        total: steps of the run; None if it is not known.
        step: the latest.
        has_reused: whether anything was reused.
        computed: how often each reason made a call compute.
        smallest: the smallest value that the policy compared with its threshold; None if it measured none.
        is_broken: whether its latents ended NaN or infinite.
        is_unlike: whether its steps or noise levels are not those of the profile.
        decided: the decisions of the latest step, by their kind.
        tally: of its decisions.
    """

    total: int | None = None
    step: int = -1
    has_reused: bool = False
    computed: Counter[str] = field(default_factory=Counter)
    smallest: float | None = None
    is_broken: bool = False
    is_unlike: bool = False
    decided: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)

    def end_step(self) -> None:
        """Count the latest step by its decisions."""
        self.tally.share(self.decided)
        self.decided.clear()


def decision_in_words(decision: Decision) -> str:
    """Its kind: "computed (first)"."""
    return f"{'reused' if decision.reused else 'computed'} ({decision.reason})"
