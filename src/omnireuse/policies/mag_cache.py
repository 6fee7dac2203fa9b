"""MagCache: reuse while the known decay of the residual's magnitude stays within an error budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from omnireuse.base.validation import Count, Positive, Share, check_fields, check_finite_list, field_error
from omnireuse.policies.base import Limit, StepView, ThresholdPolicy, known_total

__all__ = ["MagCache", "MagCacheState", "by_branch", "checked_ratios", "resampled"]


class MagCacheState(NamedTuple):
    """Sums since the last computed step of a branch.

    Attributes:
        accumulated_ratio: product of the ratios.
        accumulated_steps: reused steps.
        accumulated_err: sum of |1 − product|.
    """

    accumulated_ratio: float = 1.0
    accumulated_steps: int = 0
    accumulated_err: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MagCache(ThresholdPolicy):
    """Reuse while the magnitude ratios since the last computed step stay near 1.

    Source: "MagCache: Fast Video Generation with Magnitude-Aware Cache", arXiv 2506.09045, section 3. Decisions equal
    those of MagCache in diffusers.

    Args:
        ratios: for each branch, in the order of its calls, one ratio for each step: the mean residual norm of that step
            over that of the step before, 1.0 for the first. Finite and positive; lists, tuples, arrays and tensors. A
            flat list serves all branches. Ratios of another step count are resampled. A run with more branches than
            were measured uses the last.
        threshold: accumulated |1 − ratio| above which a step is computed, > 0. Raising it reuses more.
        max_skip_steps: longest run of reused steps, ≥ 1.
        retention_ratio: share of the first steps that are always computed, in [0, 1).
        compute_last: always compute the last step. The published method reuses it if the ratios allow that.

    Raises:
        ConfigError: a value out of range.
        StateError: at the first decision of a run whose step count is not known.
    """

    ratios: Sequence[Any]
    threshold: Positive = 0.24
    max_skip_steps: Count = 5
    retention_ratio: Share = 0.1
    compute_last: bool = False

    threshold_name: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "ratios", by_branch(checked_ratios(self, "ratios", self.ratios)))

    def start(self) -> MagCacheState:
        return MagCacheState()

    def warmup_limit(self, total: int | None) -> Limit:
        return Limit("retention_ratio", int(self.retention_ratio * (total or 0) + 0.5))

    def measured(self, state: MagCacheState, view: StepView) -> float | None:
        """The error that one more reused step would accumulate, behind the retained steps."""
        if view.total is None or view.index < self.warmup_limit(view.total).value:
            return None
        return self._after_reuse(state, view).accumulated_err

    def wants_reuse(self, state: MagCacheState, view: StepView) -> bool:
        known_total(self, view)
        error = self.measured(state, view)
        return error is not None and error <= self.threshold and state.accumulated_steps < self.max_skip_steps

    def after(self, state: MagCacheState, view: StepView, reused: bool) -> MagCacheState:
        return self._after_reuse(state, view) if reused else self.start()

    def _after_reuse(self, state: MagCacheState, view: StepView) -> MagCacheState:
        branch = self.ratios[min(view.branch, len(self.ratios) - 1)]
        ratio = state.accumulated_ratio * resampled(branch, view.total or 1)[view.index]
        return MagCacheState(ratio, state.accumulated_steps + 1, state.accumulated_err + abs(1 - ratio))


@lru_cache(maxsize=128)
def resampled(ratios: tuple[float, ...], total: int) -> tuple[float, ...]:
    """The ratio of every step of a run of `total` steps, by nearest index: i ↦ round(i (n − 1) / (N − 1)).

    Args:
        ratios: one for each step of the run that they were measured on; the first is 1.0 by convention.
        total: steps of the run, ≥ 1.
    """
    if total == len(ratios) or total == 1:
        return ratios[:total]
    return tuple(ratios[round(i * (len(ratios) - 1) / (total - 1))] for i in range(total))


def checked_ratios(owner: object, field: str, given: object) -> Any:
    """The ratios as floats, in lists or tuples as they were given; arrays and tensors become lists.

    Raises:
        ConfigError: anything but finite numbers above 0.
    """
    plain = _plain(given)
    if isinstance(plain, (list, tuple)):
        plain = type(plain)(_plain(each) for each in plain)
    is_nested = isinstance(plain, (list, tuple)) and bool(plain) and all(isinstance(b, (list, tuple)) for b in plain)
    branches = [check_finite_list(owner, field, each) for each in (plain if is_nested else [plain])]
    if not all(branch and min(branch) > 0 for branch in branches):
        raise field_error(owner, field, "be one or more numbers above 0, or as much for each branch")
    if not is_nested:
        return branches[0] if isinstance(plain, tuple) else list(branches[0])
    return type(plain)(type(before)(after) for before, after in zip(plain, branches, strict=True))


def by_branch(ratios: Sequence[Any]) -> tuple[tuple[float, ...], ...]:
    """A tuple for each branch, of ratios that `checked_ratios` has returned; a flat list is one branch."""
    is_nested = isinstance(ratios[0], (list, tuple))
    return tuple(tuple(branch) for branch in (ratios if is_nested else [ratios]))


def _plain(value: object) -> Any:
    """Arrays, tensors and their scalars as lists and numbers of Python."""
    return value.tolist() if hasattr(value, "tolist") else value
