"""The hook that counts: the events of a host become the figures of its summary."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from omnireuse.loop.events import Audit, Decision, Event, FellBack, RunEnded, Unlike
from omnireuse.summary.summary import Promise, Summary

__all__ = ["Counts"]

KEPT_EVENTS = 20_000
KEPT_AUDITS = 1000
CONCURRENT_RUNS = 256
BEYOND, STRAIGHT = 0.5, 0.4
"""`Summary.is_beyond`: least root mean square of errors, largest mean heading (``python -m bench harm``)."""


class Counts:
    """Counts events when a figure is asked for.

    Attributes:
        take: the hook. It costs one append to a queue, in any thread.
    """

    def __init__(self) -> None:
        self._inbox: deque[Event] = deque()
        self.take: Callable[[Event], None] = self._inbox.append
        self._decisions: deque[Decision] = deque(maxlen=KEPT_EVENTS)
        self._lock = threading.RLock()
        self._open: dict[int, list[Decision]] = {}
        """The decisions of each run that has not ended."""
        self._tallies = defaultdict[str, Tally](Tally)
        """Of runs by their outcome; whole ones that were measured are "measured"."""
        self._fallbacks = Counter[str]()
        """By what was done instead."""
        self._companions: dict[str, tuple[int, int]] = {}
        self._audits: deque[Audit] = deque(maxlen=KEPT_AUDITS)
        self._kept_bytes = 0
        self._unlike: str | None = None
        """The first difference from the runs of a profile, in this request."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The latest decisions, at most 20,000."""
        with self._lock:
            self._count()
            return tuple(self._decisions)

    def of_run(self, number: int) -> tuple[Decision, ...]:
        """The decisions of a run that has not ended."""
        with self._lock:
            self._count()
            return tuple(self._open.get(number, ()))

    def _count(self) -> None:
        while self._inbox:
            event = self._inbox.popleft()
            if isinstance(event, Decision):
                self._decisions.append(event)
                if event.run not in self._open and len(self._open) == CONCURRENT_RUNS:
                    self._end(RunEnded(run=next(iter(self._open))))
                self._open.setdefault(event.run, []).append(event)
            elif isinstance(event, RunEnded):
                self._end(event)
            elif isinstance(event, FellBack):
                self._fallbacks[event.on] += 1
            elif isinstance(event, Audit):
                self._audits.append(event)
            elif isinstance(event, Unlike):
                self._unlike = self._unlike or event.how
            else:  # the next request's promise holds until something is unlike
                self._unlike = None

    def _end(self, event: RunEnded) -> None:
        decisions = self._open.pop(event.run, None)
        if decisions is not None:
            self._tallies[_outcome(event.outcome, decisions)].add(decisions, event.seconds)
        self._kept_bytes = max(self._kept_bytes, event.kept_bytes)
        for name, calls in event.companions.items():
            made, every = self._companions.get(name, (0, 0))
            self._companions[name] = made + calls[0], every + calls[1]

    def summary(self, name: str, promise: Promise | None = None, **of_others: Any) -> Summary:
        """The summary so far; a run under way counts as a whole one.

        Args:
            promise: of a profile; it holds if nothing was unlike the profile.
            of_others: further fields.
        """
        with self._lock:
            self._count()
            tallies, every = defaultdict[str, Tally](Tally), Tally()
            for outcome, tally in self._tallies.items():
                tallies[outcome].include(tally)
            for decisions in self._open.values():
                tallies[_outcome("whole", decisions)].add(decisions)
            for tally in tallies.values():
                every.include(tally)
            whole = tallies["whole"] if tallies["whole"].runs else tallies["measured"]
            if promise is not None and promise.but is None:
                promise = replace(promise, but=self._unlike)
            computed = sum(share for (action, _), share in whole.steps.items() if action == "computed")
            calls = Counter[str]()
            for (action, _), number in every.calls.items():
                calls[action] += number
            return Summary(
                name=name,
                runs=every.runs,
                steps=every.num_steps,
                computed_calls=calls["computed"],
                reused_calls=calls["reused"],
                computed_steps=computed / max(whole.runs, 1),
                mean_steps=whole.num_steps / max(whole.runs, 1),
                reasons={_in_words(kind): number for kind, number in every.calls.items()},
                steps_by_reason={_in_words(kind): share for kind, share in every.steps.items()},
                mean_error=whole.error / whole.compared if whole.compared else None,
                is_beyond=computed < whole.num_steps
                and whole.squares > whole.compared * BEYOND**2
                and whole.heading < whole.headed * STRAIGHT,
                promise=promise,
                host_seconds=every.host_seconds / max(calls.total(), 1),
                kept_bytes=self._kept_bytes,
                fallbacks=dict(self._fallbacks),
                last_run=self._last_run(),
                aborted=tallies["aborted"].runs,
                broken=tallies["broken"].runs,
                measured=tallies["measured"].runs,
                saved_seconds=whole.saved_seconds,
                companions=dict(self._companions),
                audits=tuple(self._audits),
                **of_others,
            )

    def _last_run(self) -> tuple[float | None, ...]:
        latest = self._decisions[-1].run if self._decisions else None
        computed: dict[int, list[bool]] = {}
        for decision in self._decisions:
            if decision.run == latest:
                computed.setdefault(decision.step, []).append(not decision.reused)
        return tuple(
            sum(computed[step]) / len(computed[step]) if step in computed else None
            for step in range(max(computed, default=-1) + 1)
        )


Kind = tuple[str, str]
"""Of a decision: "computed" or "reused", and its reason."""


def _outcome(outcome: str, decisions: Iterable[Decision]) -> str:
    """The outcome of a run as it is counted: a whole one that was measured is "measured"."""
    is_measured = outcome == "whole" and any(each.reason == "measuring" for each in decisions)
    return "measured" if is_measured else outcome


def _in_words(kind: Kind) -> str:
    return f"{kind[0]} ({kind[1]})"


@dataclass
class Tally:
    """Sums over the decisions of runs.

    Attributes:
        runs: how many.
        num_steps: steps with a decision.
        saved_seconds: the time of a computed step, for each reused one; of runs whose time is known.
        calls: decisions of each kind.
        steps: the same in steps. A step whose calls were decided apart counts by their shares.
        compared, error, squares: forecasts that could be compared with the truth, the sum of their errors, and that of
            the squares.
        headed, heading: decisions with a heading, and the sum of these.
        host_seconds: of all decisions together.
    """

    runs: int = 0
    num_steps: int = 0
    saved_seconds: float = 0.0
    calls: Counter[Kind] = field(default_factory=Counter)
    steps: defaultdict[Kind, float] = field(default_factory=lambda: defaultdict(float))
    compared: int = 0
    error: float = 0.0
    squares: float = 0.0
    headed: int = 0
    heading: float = 0.0
    host_seconds: float = 0.0

    def add(self, decisions: Iterable[Decision], seconds: float = 0.0) -> None:
        """Add the decisions of one run, in order, and its time if that is known."""
        computed, steps = 0.0, 0
        for _, together in groupby(decisions, lambda each: each.step):
            made = Counter[Kind]()
            for each in together:
                made["reused" if each.reused else "computed", each.reason] += 1
                self.host_seconds += each.host_seconds
                if each.error is not None:
                    self.compared, self.error = self.compared + 1, self.error + each.error
                    self.squares += each.error**2
                if each.heading is not None:
                    self.headed, self.heading = self.headed + 1, self.heading + each.heading
            steps += 1
            computed += sum(number for (action, _), number in made.items() if action == "computed") / made.total()
            self.calls.update(made)
            for kind, number in made.items():
                self.steps[kind] += number / made.total()
        self.runs, self.num_steps = self.runs + 1, self.num_steps + steps
        self.saved_seconds += seconds * (steps - computed) / computed if computed else 0.0

    def include(self, other: Tally) -> None:
        """Add another's sums."""
        self.runs, self.num_steps = self.runs + other.runs, self.num_steps + other.num_steps
        self.saved_seconds += other.saved_seconds
        self.calls.update(other.calls)
        for kind, share in other.steps.items():
            self.steps[kind] += share
        self.compared, self.error = self.compared + other.compared, self.error + other.error
        self.squares += other.squares
        self.headed, self.heading = self.headed + other.headed, self.heading + other.heading
        self.host_seconds += other.host_seconds
