"""A schedule of even gaps: one of so many steps computes."""

from __future__ import annotations

from dataclasses import dataclass

from omnireuse.base.validation import Count, Index, check_fields
from omnireuse.policies.base import Limit, StepView
from omnireuse.policies.schedule import Schedule

__all__ = ["EveryNth"]


@dataclass(frozen=True, kw_only=True)
class EveryNth(Schedule):
    """Compute every so many steps after the warm-up, and the last: 15 of 28 by default.

    Args:
        every: distance of computed steps, ≥ 1.
        warmup: steps at the start that always compute, ≥ 0.

    Raises:
        ConfigError: a value out of range.
    """

    every: Count = 2
    warmup: Index = 1

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def expects_reuse(self) -> bool:
        """True if anything but a schedule of every step was asked for."""
        return self.every != 1

    def warmup_limit(self, total: int | None) -> Limit | None:
        return Limit("warmup", self.warmup)

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        warmup = max(self.warmup, 1)
        return frozenset({*range(min(warmup, total)), *range(warmup - 1, total, self.every), total - 1})

    def wants_reuse(self, state: None, view: StepView) -> bool:
        if view.total is not None:
            return super().wants_reuse(state, view)
        return view.index >= self.warmup and (view.index - max(self.warmup - 1, 0)) % self.every != 0
