"""Residual threshold (DBCache, FBCache): reuse while the signal stays close to that of the last computed step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omnireuse.base.validation import Index, Positive, Unlimited, check_fields
from omnireuse.policies.base import StepView, ThresholdPolicy

__all__ = ["ResidualDiff"]


@dataclass(frozen=True, kw_only=True)
class ResidualDiff(ThresholdPolicy):
    """Reuse where mean|R_last − R| / mean|R_last| is below a threshold, with R_last from the last computed step.

    Nothing is accumulated. In region "tail" R is what the first blocks add to their input; in other regions it is
    their signal.

    Source: DBCache of cache-dit (https://github.com/vipshop/cache-dit), after First Block Cache of ParaAttention
    (https://github.com/chengzeyi/ParaAttention).

    Args:
        residual_diff_threshold: relative L1 distance at which a step computes, finite and > 0. Raising it reuses more.
        max_warmup_steps: steps at the start that always compute, ≥ 0.
        max_cached_steps: most reused steps of a run; -1 for no limit.
        max_continuous_cached_steps: longest run of reused steps; -1 for no limit.

    Raises:
        ConfigError: a value out of range.
    """

    residual_diff_threshold: Positive = 0.24
    max_warmup_steps: Index = 4
    max_cached_steps: Unlimited = -1
    max_continuous_cached_steps: Unlimited = 3

    needs_drift: ClassVar[bool] = True
    drift_since_computed: ClassVar[bool] = True
    threshold_name: ClassVar[str] = "residual_diff_threshold"
    warmup_name: ClassVar[str | None] = "max_warmup_steps"

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self) -> tuple[int, int]:
        """Reused steps of the run, and in a row."""
        return 0, 0

    def measured(self, state: tuple[int, int], view: StepView) -> float | None:
        return view.drift if view.index >= self.max_warmup_steps else None

    def wants_reuse(self, state: tuple[int, int], view: StepView) -> bool:
        limits = (self.max_cached_steps, self.max_continuous_cached_steps)
        within = all(limit < 0 or count < limit for count, limit in zip(state, limits, strict=True))
        return within and super().wants_reuse(state, view)

    def after(self, state: tuple[int, int], view: StepView, reused: bool) -> tuple[int, int]:
        return (state[0] + 1, state[1] + 1) if reused else (state[0], 0)
