"""Residual threshold (DBCache, FBCache): reuse while the signal stays close to that of the last computed step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omnireuse.diffusion.reuse.policy import Limit, Policy, StepView
from omnireuse.diffusion.reuse.validation import check_at_least, check_positive

__all__ = ["ResidualDiff"]


@dataclass(frozen=True, kw_only=True)
class ResidualDiff(Policy):
    """Reuse where mean|R_last − R| / mean|R_last| is below a threshold, R_last being that of the last computed step.

    Nothing is accumulated, so a single step that is far off computes and all is as new. In region "tail" R is what the
    first blocks add to their input; in other regions it is their signal.

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

    residual_diff_threshold: float = 0.24
    max_warmup_steps: int = 4
    max_cached_steps: int = -1
    max_continuous_cached_steps: int = 3

    needs_drift: ClassVar[bool] = True
    drift_since_computed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "residual_diff_threshold")
        check_at_least(self, "max_warmup_steps", 0)
        check_at_least(self, "max_cached_steps", -1)
        check_at_least(self, "max_continuous_cached_steps", -1)

    @property
    def limit(self) -> Limit:
        """`residual_diff_threshold`."""
        return Limit("residual_diff_threshold", self.residual_diff_threshold)

    def measured(self, state: tuple[int, int], view: StepView) -> float | None:
        """The distance to the last computed step, behind the warm-up."""
        return view.drift if view.index >= self.max_warmup_steps else None

    def warmup_of(self, total: int | None) -> Limit:
        """`max_warmup_steps`."""
        return Limit("max_warmup_steps", self.max_warmup_steps)

    def start(self) -> tuple[int, int]:
        """Reused steps of the run, and in a row."""
        return 0, 0

    def wants_reuse(self, state: tuple[int, int], view: StepView) -> bool:
        """Whether the signal is close enough and no limit is reached."""
        reused, in_a_row = state
        return (
            view.index >= self.max_warmup_steps
            and view.drift is not None
            and view.drift < self.residual_diff_threshold
            and (self.max_cached_steps < 0 or reused < self.max_cached_steps)
            and (self.max_continuous_cached_steps < 0 or in_a_row < self.max_continuous_cached_steps)
        )

    def after(self, state: tuple[int, int], view: StepView, reused: bool) -> tuple[int, int]:
        """Count what was really done."""
        return (state[0] + 1, state[1] + 1) if reused else (state[0], 0)
