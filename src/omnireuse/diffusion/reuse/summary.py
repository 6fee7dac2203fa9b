"""Counters and the summary of a session, built on its events and on nothing else."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from omnireuse.diffusion.reuse.events import Decision

__all__ = ["Ledger", "Summary"]

KEPT_EVENTS = 20_000
CONCURRENT_RUNS = 256


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What reuse has really done so far.

    Attributes:
        name: of the strategy.
        runs: generations with at least one decision.
        steps: denoising steps of all runs.
        calls: decisions: one a step in region "step", one a denoiser call elsewhere.
        computed_calls, reused_calls: how they were decided.
        computed_steps: denoising steps computed in a mean run; fractions where branches decided differently.
        speedup: decisions divided by computed ones: what reuse can give at most, before anything else takes time.
        reasons: how often each reason decided, computing and reusing apart.
        mean_error: mean relative L1 error of the forecasts that could be compared with the truth; None without any.
        host_seconds: mean host time of a decision with its forecast.
        kept_bytes: most bytes of tensors that one run held.
        calls_outside: denoiser calls that belonged to no run and were passed on.
    """

    name: str
    runs: int
    steps: int
    calls: int
    computed_calls: int
    reused_calls: int
    computed_steps: float
    speedup: float
    reasons: dict[str, int] = field(default_factory=dict)
    mean_error: float | None = None
    host_seconds: float = 0.0
    kept_bytes: int = 0
    calls_outside: int = 0

    def __str__(self) -> str:
        """A few lines for a person."""
        if not self.calls:
            outside = f" ({self.calls_outside} denoiser calls belonged to no run)" if self.calls_outside else ""
            return f"{self.name}: nothing was decided yet{outside}"
        per_run = self.steps / self.runs
        lines = [
            f"{self.name}: {self.computed_steps:.1f} of {per_run:.1f} steps computed in {self.runs} runs "
            f"({self.speedup:.2f}x fewer)",
            "  " + ", ".join(f"{reason} {count}" for reason, count in sorted(self.reasons.items())),
            f"  {self.host_seconds * 1e3:.3f} ms a decision, {self.kept_bytes / 2**20:.2f} MiB kept at most",
        ]
        if self.mean_error is not None:
            lines.append(f"  forecasts were {self.mean_error:.1%} off on average where the truth became known")
        return "\n".join(lines)


class Ledger:
    """Counts decisions and hands them on.

    Args:
        name: of the strategy, for the summary.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._events: deque[Decision] = deque(maxlen=KEPT_EVENTS)
        self._observers: list[Callable[[Decision], None]] = []
        self._reasons: Counter[str] = Counter()
        self._steps = self._runs = 0
        self._step_of: dict[int, int] = {}
        self._computed = self._reused = 0
        self._errors = self._error_sum = 0.0
        self._host_seconds = 0.0

    @property
    def events(self) -> tuple[Decision, ...]:
        """The latest decisions, at most 20,000."""
        return tuple(self._events)

    def subscribe(self, observer: Callable[[Decision], None]) -> Callable[[], None]:
        """Call `observer` with every decision from now on; the function returned ends it."""
        self._observers.append(observer)

        def unsubscribe() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return unsubscribe

    def record(self, decision: Decision) -> None:
        """Take one decision."""
        self._events.append(decision)
        if decision.run not in self._step_of:
            self._runs += 1
            if len(self._step_of) == CONCURRENT_RUNS:
                del self._step_of[next(iter(self._step_of))]
        self._steps += self._step_of.get(decision.run) != decision.step
        self._step_of[decision.run] = decision.step
        self._reasons[f"reused ({decision.reason})" if decision.reused else f"computed ({decision.reason})"] += 1
        self._reused += decision.reused
        self._computed += not decision.reused
        self._host_seconds += decision.host_seconds
        if decision.error is not None:
            self._errors += 1
            self._error_sum += decision.error
        for observer in tuple(self._observers):
            observer(decision)

    def summary(self, *, kept_bytes: int, calls_outside: int) -> Summary:
        """What happened so far."""
        calls = self._computed + self._reused
        return Summary(
            name=self._name,
            runs=self._runs,
            steps=self._steps,
            calls=calls,
            computed_calls=self._computed,
            reused_calls=self._reused,
            computed_steps=self._steps / self._runs * self._computed / calls if calls else 0.0,
            speedup=calls / self._computed if self._computed else 1.0,
            reasons=dict(self._reasons),
            mean_error=self._error_sum / self._errors if self._errors else None,
            host_seconds=self._host_seconds / calls if calls else 0.0,
            kept_bytes=kept_bytes,
            calls_outside=calls_outside,
        )
