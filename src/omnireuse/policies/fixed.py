"""Schedules that do not depend on the run: chosen steps, one of every n, a mask of SCM, and all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, zip_longest
from typing import Annotated, Any

from omnireuse import messages
from omnireuse.base.validation import (
    Count,
    Index,
    check_fields,
    check_finite_list,
    check_value,
    field_error,
    is_whole,
    look_up,
)
from omnireuse.errors import StateError
from omnireuse.policies.base import SAME_NOISE, Limit, Policy, Schedule, StepView

__all__ = ["SCHEDULES", "EveryNth", "Mask", "Never", "StepMask", "Steps", "check_mask", "mask_of", "scm_mask"]


@dataclass(frozen=True, kw_only=True)
class Steps(Schedule):
    """Compute at these steps, and at the first.

    Args:
        steps: the steps that are computed, counted from 0. A negative step counts from the end.
        made_at: the noise fraction at each step of the run that `steps` were chosen for, or its steps' numbers if
            its noise is not known. None takes `steps` as they are, whatever the run.
        elsewhere: with `made_at`, the schedule of runs of another length, or at other noise levels.
        compute_last: whether the last step is computed although `steps` leaves it out. It is worth more than any other,
            unless weights were fitted to do without it.

    Raises:
        ConfigError: a value out of range, or one of `made_at` and `elsewhere` without the other.
        StateError: at the first decision of a run that lacks one of the steps, or whose step count is unknown.
    """

    steps: tuple[int, ...]
    made_at: tuple[float, ...] | None = None
    elsewhere: Schedule | None = None
    compute_last: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        is_list = isinstance(self.steps, Iterable) and not isinstance(self.steps, (str, bytes))
        if not is_list or not all(map(is_whole, self.steps)):
            raise field_error(self, "steps", "be a sequence of whole numbers")
        object.__setattr__(self, "steps", tuple(sorted(set(self.steps))))
        if self.made_at is not None:
            object.__setattr__(self, "made_at", check_finite_list(self, "made_at", self.made_at))
        if (self.made_at is None) != (self.elsewhere is None):
            raise field_error(self, "elsewhere", "be given with made_at, and only then")
        if self.elsewhere is not None and not isinstance(self.elsewhere, Schedule):
            raise field_error(self, "elsewhere", "be a schedule")

    @property
    def expects_reuse(self) -> bool:
        """False: these steps were chosen, so there is no warning even if they are all steps."""
        return False

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        return _schedule(self, total, noises if self.made_at is not None else None)


@lru_cache(maxsize=256)
def _schedule(policy: Steps, total: int, noises: tuple[float, ...] | None) -> frozenset[int]:
    if policy.elsewhere is not None and not _is_like(policy.made_at or (), total, noises):
        return policy.elsewhere.schedule(total, noises)
    beyond = [step for step in policy.steps if not -total <= step < total]
    if beyond:
        raise StateError(messages.STEP_BEYOND, policy=policy, step=beyond[0], total=total)
    last = [total - 1] if policy.compute_last else []
    return frozenset({0, *last, *(step % total for step in policy.steps)})


def _is_like(made_at: tuple[float, ...], total: int, noises: tuple[float, ...] | None) -> bool:
    if len(made_at) != total or noises is None or any(a < b for a, b in pairwise(made_at)):
        return len(made_at) == total
    return all(abs(a - b) <= SAME_NOISE for a, b in zip(made_at, noises, strict=True))


@dataclass(frozen=True, kw_only=True)
class EveryNth(Schedule):
    """Compute every n-th step after the warm-up, and the last: 15 of 28 by default.

    Args:
        every: distance of computed steps, ≥ 1.
        warmup: steps at the start that are always computed, ≥ 0.

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


SCHEDULES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "slow": ((8, 3, 3, 2, 1, 1), (1, 2, 2, 2, 3)),
    "medium": ((6, 2, 2, 2, 2, 1), (1, 3, 3, 3, 3)),
    "fast": ((6, 1, 1, 1, 1, 1), (1, 3, 4, 5, 4)),
    "ultra": ((4, 1, 1, 1, 1), (2, 5, 6, 7)),
}
"""The named SCM schedules at 28 steps: lengths of the runs of computed steps, and of the reused runs between them.

Source: cache-dit, `steps_mask`.
"""


Mask = str | Sequence[int]
"""The name of a schedule (`scm_mask`), or for each step 1 to compute and 0 to allow reuse."""


def check_mask(owner: object, field: str) -> None:
    """Raise unless the field is a `Mask`; entries are kept as a tuple of whole numbers.

    Raises:
        UnknownNameError: a name that is no schedule.
        ConfigError: an explicit mask that is empty or holds anything but 0 and 1.
    """
    given: Any = getattr(owner, field)
    if isinstance(given, str):
        scm_mask(given, 1)
        return
    entries = tuple(given) if isinstance(given, Iterable) else ()
    if not entries or not all(each in (0, 1) for each in entries):
        raise field_error(owner, field, "be the name of a schedule, or a 0 or 1 for each step")
    object.__setattr__(owner, field, tuple(map(int, entries)))


def mask_of(mask: Mask, total: int) -> Sequence[int]:
    """The mask of a run of `total` steps.

    Raises:
        StateError: an explicit mask of another length.
    """
    if isinstance(mask, str):
        return scm_mask(mask, total)
    if len(mask) != total:
        raise StateError(f"the mask has {len(mask)} entries, but this run has {total} steps; give one for each step")
    return mask


@dataclass(frozen=True, kw_only=True)
class StepMask(Schedule):
    """Compute if the mask says so, and at the first and the last step. `ResidualDiff` may have a mask as well.

    Args:
        mask: see `Mask`.

    Raises:
        UnknownNameError, ConfigError: as `check_mask`.
        StateError: at the first decision of a run, if an explicit mask is not as long as the run, or the step count
            is not known.
    """

    mask: Annotated[Mask, check_mask] = "medium"

    def __post_init__(self) -> None:
        check_fields(self)

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        return frozenset({0, total - 1, *(step for step, computes in enumerate(mask_of(self.mask, total)) if computes)})


@lru_cache(maxsize=256)
def scm_mask(name: str, num_inference_steps: int) -> tuple[int, ...]:
    """A named schedule for any step count: 1 computes, 0 may be reused. The first and the last step are 1.

    At 28 steps it is the table's. Elsewhere as many steps are computed as come closest to the table's share, two at
    least. The k-th of them is where the table's curve "k-th computed step ↦ step" is after both axes are stretched.
    That keeps the density of each phase, and no run of reused steps is longer than the table's longest.

    Args:
        name: "slow", "medium", "fast" or "ultra".
        num_inference_steps: length of the mask, ≥ 1.

    Raises:
        UnknownNameError: another name.
        ConfigError: a step count below 1.
    """
    schedule = look_up("step mask", name, SCHEDULES)
    total = num_inference_steps
    check_value("scm_mask", "num_inference_steps", total, Count)
    runs = list(chain(*zip_longest(*schedule, fillvalue=0)))
    table = [1 - i % 2 for i, length in enumerate(runs) for _ in range(length)]
    steps = [step for step, computes in enumerate(table) if computes]
    longest = max(schedule[1]) + 1
    # Rounded half up, in whole numbers: count / total is the nearest there is to len(steps) / len(table).
    count = min(total, max(2, (2 * total * len(steps) + len(table)) // (2 * len(table))))
    mask = [0] * total
    last = -1
    for k in range(count):
        place = k * (len(steps) - 1) / max(count - 1, 1)
        below = int(place)
        between = (place - below) * (steps[min(below + 1, len(steps) - 1)] - steps[below])
        aimed = round((steps[below] + between) * (total - 1) / (len(table) - 1))
        # Rounding must cost neither a step nor the bound on gaps, before this step or behind it.
        behind = count - 1 - k
        least = max(last + 1, total - 1 - behind * longest)
        most = min(last + longest, total - 1 - behind) if k else 0
        last = min(max(aimed, least), most)
        mask[last] = 1
    return tuple(mask)


@dataclass(frozen=True, kw_only=True)
class Never(Policy):
    """Never reuse. Events and counters still run, so this is the reference for every comparison."""

    @property
    def expects_reuse(self) -> bool:
        return False

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        return frozenset(range(total))

    def wants_reuse(self, state: None, view: StepView) -> bool:
        return False
