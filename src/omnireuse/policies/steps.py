"""A schedule of chosen steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from omnireuse.base.validation import check_fields, check_finite_list, field_error, is_whole
from omnireuse.errors import StateError
from omnireuse.policies.base import SAME_NOISE
from omnireuse.policies.schedule import Schedule

__all__ = ["Steps"]


@dataclass(frozen=True, kw_only=True)
class Steps(Schedule):
    """Compute at these steps, and at the first.

    Args:
        steps: the steps that compute, counted from 0. A negative step counts from the end.
        made_at: the noise fraction at each step of the run that `steps` were chosen for, or its steps' numbers where
            its noise is not known. None takes `steps` as they are, whatever the run.
        elsewhere: with `made_at`, the schedule of runs of another length, or at other noise levels.
        compute_last: whether the last step computes although `steps` leaves it out. It is worth more than any other,
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
        raise StateError(
            f"{policy!r} names step {beyond[0]}, but this run has {total} steps; give a schedule for {total}"
        )
    last = [total - 1] if policy.compute_last else []
    return frozenset({0, *last, *(step % total for step in policy.steps)})


def _is_like(made_at: tuple[float, ...], total: int, noises: tuple[float, ...] | None) -> bool:
    if len(made_at) != total or noises is None or any(a < b for a, b in pairwise(made_at)):
        return len(made_at) == total
    return all(abs(a - b) <= SAME_NOISE for a, b in zip(made_at, noises, strict=True))
