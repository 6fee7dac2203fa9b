"""Steps that compute whatever a policy says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnireuse.base.validation import is_number
from omnireuse.engines.comfyui.noise import NEAR
from omnireuse.errors import ConfigError
from omnireuse.loop.policy import Limit, Policy, StepView

__all__ = ["Bounded", "Span"]


@dataclass(frozen=True, kw_only=True)
class Span:
    """The share of a denoising in which steps may be reused, as ComfyUI's ``start_percent`` and ``end_percent``.

    Args:
        start: reuse begins after this share, in [0, 1).
        end: reuse ends after this share, above `start` and at most 1.
    """

    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if not (is_number(self.start) and is_number(self.end) and 0 <= self.start < self.end <= 1):
            raise ConfigError(
                f"Omnireuse(start_percent={self.start!r}, end_percent={self.end!r}): start_percent must be at least 0 "
                "and below end_percent, which is at most 1; 0 and 1 allow reuse everywhere"
            )

    @property
    def is_everything(self) -> bool:
        """Whether every step may be reused."""
        return (self.start, self.end) == (0.0, 1.0)

    def to_compute(self, sigmas: Sequence[float], model_sampling: Any) -> frozenset[int]:
        """The steps outside, which compute."""
        if self.is_everything:
            return frozenset()
        first, last = (float(model_sampling.percent_to_sigma(each)) for each in (self.start, self.end))
        first, last = first * (1 + NEAR), last * (1 + NEAR)
        return frozenset(step for step, sigma in enumerate(sigmas) if not last < sigma <= first)


@dataclass(frozen=True, kw_only=True)
class Bounded(Policy):
    """Another policy, and steps that compute besides those that it chooses.

    Args:
        policy: decides elsewhere.
        always: the steps, counted from 0.
    """

    policy: Policy
    always: frozenset[int]

    def __post_init__(self) -> None:
        for name in ("needs_drift", "needs_error", "drift_since_computed", "signal"):
            object.__setattr__(self, name, getattr(self.policy, name))

    @property
    def expects_reuse(self) -> bool:
        """As the other policy."""
        return self.policy.expects_reuse

    @property
    def compute_last(self) -> bool:
        """As the other policy."""
        return self.policy.compute_last

    @property
    def limit(self) -> Limit | None:
        """As the other policy."""
        return self.policy.limit

    def warmup_limit(self, total: int | None) -> Limit | None:
        """As the other policy."""
        return self.policy.warmup_limit(total)

    def measured(self, state: Any, view: StepView) -> float | None:
        """As the other policy."""
        return self.policy.measured(state, view)

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int] | None:
        """The steps that the other policy computes, and those that always do."""
        chosen = self.policy.schedule(total, noises)
        return None if chosen is None else chosen | {step for step in self.always if step < total}

    def caution(self, total: int, noises: tuple[float, ...] | None = None) -> str | None:
        """As the other policy."""
        return self.policy.caution(total, noises)

    def start(self) -> Any:
        """As the other policy."""
        return self.policy.start()

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        """Whether the other policy would reuse, at a step that need not compute."""
        return view.index not in self.always and self.policy.wants_reuse(state, view)

    def after(self, state: Any, view: StepView, reused: bool) -> Any:
        """As the other policy."""
        return self.policy.after(state, view, reused)
