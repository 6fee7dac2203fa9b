"""MagCache: reuse while the known decay of the residual's magnitude stays within an error budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from omnireuse.diffusion.reuse.policy import StepView
from omnireuse.diffusion.reuse.validation import check_at_least, check_finite_list, check_positive, field_error
from omnireuse.errors import StateError

__all__ = ["MagCache", "resampled"]


@dataclass(frozen=True, kw_only=True)
class MagCache:
    """Reuse while the magnitude ratios since the last computed step say that little was lost.

    Source: "MagCache: Fast Video Generation with Magnitude-Aware Cache", arXiv 2506.09045, section 3.

    Args:
        threshold: accumulated |1 − ratio| at which a step computes, > 0. Raising it reuses more.
        max_skip_steps: longest run of reused steps, ≥ 1.
        retention_ratio: share of the first steps that always compute, in [0, 1).
        ratios: for each branch, in the order of its calls, the ratio of the mean residual norm of each step from the
            second on to that of the step before; finite and positive. Measured at another step count, they are
            resampled. A run with more branches than were measured uses the last.

    Raises:
        ConfigError: a value out of range.
        StateError: at the first decision of a run whose step count nobody told.
    """

    ratios: Sequence[Sequence[float]]
    threshold: float = 0.24
    max_skip_steps: int = 5
    retention_ratio: float = 0.1

    needs_drift: ClassVar[bool] = False
    needs_error: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive(self, "threshold")
        check_at_least(self, "max_skip_steps", 1)
        if not (isinstance(self.retention_ratio, (int, float)) and 0 <= self.retention_ratio < 1):
            raise field_error(self, "retention_ratio", "be at least 0 and below 1")
        branches = tuple(check_finite_list(self, "ratios", branch) for branch in self.ratios)
        if not branches or not all(branch and min(branch) > 0 for branch in branches):
            raise field_error(self, "ratios", "be one or more numbers above 0 for each branch")
        object.__setattr__(self, "ratios", branches)

    def start(self) -> tuple[float, int, float]:
        """Ratio, reused steps and error since the last computed step."""
        return 1.0, 0, 0.0

    def wants_reuse(self, state: tuple[float, int, float], view: StepView) -> bool:
        """Whether one more reused step stays within the budget."""
        if view.total is None:
            raise StateError(
                "MagCache depends on the number of steps; call refresh(pipeline, num_inference_steps) first"
            )
        if view.index < int(self.retention_ratio * view.total + 0.5):
            return False
        _, skipped, error = self._after_reuse(state, view)
        return error <= self.threshold and skipped <= self.max_skip_steps

    def after(self, state: tuple[float, int, float], view: StepView, reused: bool) -> tuple[float, int, float]:
        """A computed step starts the account anew."""
        return self._after_reuse(state, view) if reused else self.start()

    def _after_reuse(self, state: tuple[float, int, float], view: StepView) -> tuple[float, int, float]:
        ratio, skipped, error = state
        branch = tuple(self.ratios[min(view.branch, len(self.ratios) - 1)])
        ratio *= resampled(branch, view.total or 1)[view.index]
        return ratio, skipped + 1, error + abs(1 - ratio)


@lru_cache(maxsize=128)
def resampled(ratios: tuple[float, ...], total: int) -> tuple[float, ...]:
    """The ratio of every step of a run of `total` steps, by nearest index: i ↦ round(i (n − 1) / (N − 1)).

    The first step has no ratio and counts as 1.
    """
    measured = (1.0, *ratios)
    if total == len(measured) or total == 1:
        return measured[:total]
    return tuple(measured[round(i * (len(measured) - 1) / (total - 1))] for i in range(total))
