"""The counters and the summary of a session, built on its events."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from omnireuse.diffusion.reuse.events import Decision
from omnireuse.diffusion.reuse.policy import SAME_NOISE
from omnireuse.diffusion.reuse.present import counted, share_of_steps, summary_html, summary_text

if TYPE_CHECKING:
    from omnireuse.diffusion.tuning.state import Tuning

__all__ = ["Audit", "Promise", "RunRecord", "Stats", "Summary"]

logger = logging.getLogger("omnireuse")

KEPT_EVENTS = 20_000
CONCURRENT_RUNS = 256


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a profile knows of the quality of its plan, and for which runs.

    Attributes:
        tenth: PSNR in dB to the full run that at least nine of ten new pictures reach, by what the held-out prompts
            have shown; −inf where they were too few to say.
        expected: mean on the held-out prompts; NaN without any.
        prompts: how many those were.
        coordinates: of the steps of the runs that it was measured on, as forecasters see them.
        but: why nothing is promised, if so.
    """

    tenth: float
    expected: float
    prompts: int
    coordinates: tuple[float, ...]
    but: str | None = None

    @property
    def quality(self) -> float:
        """PSNR in dB that at least nine of ten new pictures reach; −inf where nothing is promised."""
        return self.tenth if self.but is None else -math.inf

    def covers(self, decision: Decision) -> bool:
        """Whether the decision belongs to a run like those."""
        if decision.total is not None and decision.total != len(self.coordinates):
            return False
        return decision.noise is None or abs(decision.noise - self.coordinates[decision.step]) <= SAME_NOISE

    def __str__(self) -> str:
        if not self.prompts:
            return f"not promised: {self.but or 'the plan was not judged on held-out prompts'}"
        mean = f"mean {self.expected:.1f} on {counted(self.prompts, 'held-out prompt')}"
        if not math.isfinite(self.tenth):
            return f"not promised: {self.but or 'too few held-out prompts'} ({mean})"
        shown = f"nine of ten reach {self.tenth:.1f} dB; {mean}"
        return f"promised: {shown}" if self.but is None else f"not promised: {self.but} (the profile: {shown})"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A call that was made again in full after its pictures were done.

    Attributes:
        call: number of the call on this handle, from 1.
        errors: relative L1 error of the final latents of each picture.
        tolerance: that was promised; None where none was.
    """

    call: int
    errors: tuple[float, ...]
    tolerance: float | None = None

    @property
    def broken(self) -> int:
        """Pictures beyond the tolerance."""
        return 0 if self.tolerance is None else sum(error > self.tolerance for error in self.errors)


@dataclass(frozen=True, kw_only=True, repr=False)
class Summary:
    """What reuse has really done so far.

    Attributes:
        name: of the strategy.
        runs: generations with at least one decision.
        steps: denoising steps of all runs.
        calls: decisions: one a step in region "step", one a denoiser call elsewhere.
        computed_calls, reused_calls: how they were decided.
        computed_steps: denoising steps computed in a mean run; fractions where branches decided differently.
        step_ratio: decisions divided by computed ones. It is no speed-up: time falls by the denoiser's share of it.
        reasons: how often each reason decided, computing and reusing apart.
        mean_error: mean relative L1 distance, at computed steps, between the forecast for the step and what was
            computed and used; None where none could be compared. Not the error of the result.
        worst_error: the largest of them, as a rule at an early step, where x0 is hardly known yet.
        promise: what the profile that gave the plan knows of its quality; None without a profile.
        promise_holds: whether nothing has withdrawn it: the pipeline and all runs so far were like those that it was
            measured on.
        host_seconds: mean host time of a decision with its forecast.
        kept_bytes: most bytes of tensors that one run held.
        calls_outside: denoiser calls that belonged to no run and were passed on.
        fallbacks: how often reuse went on in another way than was asked for, by what it went on with.
        last_run: for each step of the latest run, the share of its decisions that computed; None for a step without
            any.
        audits: of the latest calls, oldest first; at most 1,000.
        tuning: what tuning has come to for runs like the latest one; None where it is off.
    """

    name: str
    runs: int
    steps: int
    calls: int
    computed_calls: int
    reused_calls: int
    computed_steps: float
    step_ratio: float
    reasons: dict[str, int] = field(default_factory=dict)
    mean_error: float | None = None
    worst_error: float | None = None
    promise: Promise | None = None
    promise_holds: bool = True
    host_seconds: float = 0.0
    kept_bytes: int = 0
    calls_outside: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    last_run: tuple[float | None, ...] = ()
    audits: tuple[Audit, ...] = ()
    tuning: Tuning | None = None

    def __str__(self) -> str:
        """A few lines for a person."""
        return summary_text(self)

    def __repr__(self) -> str:
        done = f"{share_of_steps(self)}, {counted(self.runs, 'run')}" if self.calls else "nothing decided yet"
        return f"<Summary of {self.name}: {done}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return summary_html(self)


@dataclass
class RunRecord:
    """The decisions of one run.

    Attributes:
        total: steps of the run; None where it is not known.
        step: the latest.
        has_reused: whether anything was reused.
        computed: how often each reason made a call compute.
        smallest: the smallest value that the policy compared with its threshold; None where it measured none.
    """

    total: int | None = None
    step: int = -1
    has_reused: bool = False
    computed: Counter[str] = field(default_factory=Counter)
    smallest: float | None = None


class Stats:
    """Counts decisions. They are put into `inbox` and counted when a figure is asked for or a run ends.

    Args:
        name: of the strategy, for the summary.
        promise: what a profile knows of it.
    """

    def __init__(self, name: str, promise: Promise | None = None) -> None:
        self.inbox: deque[Decision] = deque()
        """Takes decisions, in any thread."""
        self.observers: tuple[Callable[[Decision], None], ...] = ()
        """Called with every decision by whoever puts it into the inbox."""
        self._name, self._promise = name, promise
        self._events: deque[Decision] = deque(maxlen=KEPT_EVENTS)
        self._lock = threading.RLock()
        self._records: dict[int, RunRecord] = {}
        self._reasons: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._is_carried_over = False
        self._steps = self._runs = self._computed = self._reused = self._errors = 0
        self._error_sum = self._worst_error = self._host_seconds = 0.0

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

    def end_run(self, number: int) -> RunRecord | None:
        """The record of a run that has ended; None where nothing was decided in it."""
        with self._lock:
            self._count()
            return self._records.pop(number, None)

    @property
    def is_judged(self) -> bool:
        """Whether held-out prompts have shown a quality that can be promised."""
        return self._promise is not None and math.isfinite(self._promise.tenth)

    def withdraw(self, but: str) -> None:
        """Promise nothing from now on; `but` says why. The first reason stays."""
        with self._lock:
            if self._promise is not None and self._promise.but is None:
                self._promise = replace(self._promise, but=but)

    def fell_back(self, on: str) -> None:
        """Count a fallback, by what reuse goes on with."""
        with self._lock:
            self._fallbacks[on] += 1

    def _count(self) -> None:
        while self.inbox:
            self._count_one(self.inbox.popleft())

    def _count_one(self, decision: Decision) -> None:
        self._events.append(decision)
        record = self._records.get(decision.run)
        if record is None:
            self._runs += 1
            if len(self._records) == CONCURRENT_RUNS:
                del self._records[next(iter(self._records))]
            record = self._records[decision.run] = RunRecord(total=decision.total)
        self._steps += record.step != decision.step
        record.step = decision.step
        self._reasons[f"{'reused' if decision.reused else 'computed'} ({decision.reason})"] += 1
        self._host_seconds += decision.host_seconds
        if decision.reused:
            self._reused += 1
            record.has_reused = True
        else:
            self._computed += 1
            record.computed[decision.reason] += 1
            if decision.measured is not None and decision.reason == "policy":
                known = decision.measured if record.smallest is None else record.smallest
                record.smallest = min(known, decision.measured)
        if decision.error is not None:
            self._errors += 1
            self._error_sum += decision.error
            self._worst_error = max(self._worst_error, decision.error)
        promise = self._promise
        if promise is not None and not self._is_carried_over and not promise.covers(decision):
            self._is_carried_over = True
            is_as_long = decision.total in (None, len(promise.coordinates))
            differ = "other noise levels" if is_as_long else f"{decision.total} steps"
            but = f"a run has {differ}, the profile was measured on runs of {len(promise.coordinates)} steps"
            self.withdraw(but)
            logger.warning(
                "%s: %s: its steps and weights are carried over by noise, and nothing is promised", self._name, but
            )

    def summary(self, *, kept_bytes: int, calls_outside: int) -> Summary:
        """What happened so far."""
        with self._lock:
            self._count()
            calls = self._computed + self._reused
            return Summary(
                name=self._name,
                runs=self._runs,
                steps=self._steps,
                calls=calls,
                computed_calls=self._computed,
                reused_calls=self._reused,
                computed_steps=self._steps / self._runs * self._computed / calls if calls else 0.0,
                step_ratio=calls / self._computed if self._computed else 1.0,
                reasons=dict(self._reasons),
                mean_error=self._error_sum / self._errors if self._errors else None,
                worst_error=self._worst_error if self._errors else None,
                promise=self._promise,
                promise_holds=self._promise is None or self._promise.but is None,
                host_seconds=self._host_seconds / calls if calls else 0.0,
                kept_bytes=kept_bytes,
                calls_outside=calls_outside,
                fallbacks=dict(self._fallbacks),
                last_run=self._last_run(),
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
