"""Step masks (SCM): which steps may be reused is fixed beforehand, by name or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any

from omnireuse.base.validation import field_error
from omnireuse.errors import StateError, UnknownNameError, WrongTypeError
from omnireuse.policies.base import Limit, Policy, StepView

__all__ = ["SCHEDULES", "StepMask", "scm_mask"]

SCHEDULES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "slow": ((8, 3, 3, 2, 1, 1), (1, 2, 2, 2, 3)),
    "medium": ((6, 2, 2, 2, 2, 1), (1, 3, 3, 3, 3)),
    "fast": ((6, 1, 1, 1, 1, 1), (1, 3, 4, 5, 4)),
    "ultra": ((4, 1, 1, 1, 1), (2, 5, 6, 7)),
}
"""The named SCM schedules at 28 steps: lengths of the runs of computed steps, and of the reused runs between them.

Source: cache-dit, `steps_mask`.
"""


class _Always(Policy):
    """Reuse wherever the mask allows it."""

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return True


_ALWAYS = _Always()


@dataclass(frozen=True, kw_only=True)
class StepMask(Policy):
    """Compute where the mask says so. Elsewhere reuse, or let another policy decide. The first and last step compute.

    Args:
        mask: the name of a schedule (`scm_mask`), or for each step 1 to compute and 0 to allow reuse.
        dynamic: decides where the mask allows reuse, within its own warm-up and limits; None reuses wherever the mask
            allows it ("static").

    Raises:
        UnknownNameError: a name that is no schedule.
        ConfigError: an explicit mask that is empty or holds anything but 0 and 1.
        WrongTypeError: `dynamic` is no policy.
        StateError: at the first decision of a run, where an explicit mask is not as long as the run, or the step count
            is not known.
    """

    mask: str | Sequence[int] = "medium"
    dynamic: Policy | None = None

    def __post_init__(self) -> None:
        if isinstance(self.mask, str):
            scm_mask(self.mask, 1)
        else:
            try:
                mask = tuple(int(each) if each in (0, 1) else 2 for each in self.mask)
            except TypeError:
                mask = ()
            if not mask or 2 in mask:
                raise field_error(self, "mask", "be the name of a schedule, or a 0 or 1 for each step")
            object.__setattr__(self, "mask", mask)
        if self.dynamic is not None and not isinstance(self.dynamic, Policy):
            given = "a class" if isinstance(self.dynamic, type) else type(self.dynamic).__name__
            raise WrongTypeError(f"StepMask(dynamic={self.dynamic!r}): dynamic must be a policy, got {given}")
        for name in ("needs_drift", "needs_error", "drift_since_computed", "signal"):
            object.__setattr__(self, name, getattr(self._inner, name))

    @property
    def _inner(self) -> Policy:
        return self.dynamic or _ALWAYS

    @property
    def limit(self) -> Limit | None:
        return self._inner.limit

    def warmup_limit(self, total: int | None) -> Limit | None:
        return self._inner.warmup_limit(total)

    def measured(self, state: Any, view: StepView) -> float | None:
        return self._inner.measured(state, view)

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int] | None:
        if self.dynamic is not None:
            return None
        return frozenset({0, total - 1, *(step for step, computes in enumerate(self.mask_of(total)) if computes)})

    def start(self) -> Any:
        return self._inner.start()

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return not self.mask_of(view.total)[view.index] and self._inner.wants_reuse(state, view)

    def after(self, state: Any, view: StepView, reused: bool) -> Any:
        return self._inner.after(state, view, reused)

    def mask_of(self, total: int | None) -> tuple[int, ...]:
        """The mask of a run of `total` steps.

        Raises:
            StateError: an explicit mask of another length, or an unknown step count.
        """
        if total is None:
            raise StateError(
                "StepMask depends on the number of steps, which is not known; "
                "call refresh(pipeline, num_inference_steps)"
            )
        if isinstance(self.mask, str):
            return scm_mask(self.mask, total)
        if len(self.mask) != total:
            raise StateError(
                f"StepMask(mask=…) has {len(self.mask)} entries, but this run has {total} steps; give one for each step"
            )
        return tuple(self.mask)


@lru_cache(maxsize=256)
def scm_mask(name: str, num_inference_steps: int) -> tuple[int, ...]:
    """A named schedule for any step count: 1 computes, 0 may be reused. The first and the last step are 1.

    At 28 steps it is the table's. Elsewhere as many steps compute as come closest to the table's share, two at least.
    The k-th of them is where the table's curve "k-th computed step ↦ step" is after both axes are stretched. That keeps
    the density of each phase, and no run of reused steps is longer than the table's longest.

    Args:
        name: "slow", "medium", "fast" or "ultra".
        num_inference_steps: length of the mask, ≥ 1.

    Raises:
        UnknownNameError: another name.
        ConfigError: a step count below 1.
    """
    if name not in SCHEDULES:
        raise UnknownNameError("step mask", name, SCHEDULES)
    total = num_inference_steps
    if total < 1:
        raise field_error("scm_mask", "num_inference_steps", "be a whole number of at least 1", str(total))
    runs = list(chain(*zip_longest(*SCHEDULES[name], fillvalue=0)))
    table = [1 - i % 2 for i, length in enumerate(runs) for _ in range(length)]
    steps = [step for step, computes in enumerate(table) if computes]
    longest = max(SCHEDULES[name][1]) + 1
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
