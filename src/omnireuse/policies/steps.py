"""A schedule of chosen steps, carried over to runs of another length or other noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from omnireuse.base.validation import Count, check_fields, check_finite_list, field_error, is_whole
from omnireuse.errors import StateError
from omnireuse.loop.policy import SAME_NOISE
from omnireuse.policies.schedule import Schedule
from omnireuse.policies.spread import check_amount, nearest, spread_by_noise

__all__ = ["Steps"]

FEW = 0.4
"""Below this share, the steps of a plan are carried over to a scheduler of another shift."""
SHIFTED = 0.04
"""Runs whose noise, after equal shares of their steps, differs by more somewhere have schedulers of another shift: 1.2
in place of 1 (``python -m bench travel``)."""


@dataclass(frozen=True, kw_only=True)
class Steps(Schedule):
    """Compute at these steps, and at the first.

    Args:
        steps: the steps that compute, counted from 0. A negative step counts from the end.
        made_for: length of the run that `steps` were chosen for; a run of another length computes as large a share of
            its steps, or what `num_computed` or `speedup` ask for, spread in the same way. None takes `steps` as they
            are, whatever the length.
        made_for_noises: noise fraction at each step of that run, descending. A run with other shares computes where as
            much noise is left, roughly. None goes by the steps' numbers; so does a run whose noise is not known.
        shorter: schedules of fewer computed steps for that run. A run that computes fewer follows the one whose number
            is nearest, and computes its last step if that one does.
        num_computed: with `made_for`, how many steps compute in other runs, ≥ 2.
        speedup: in its place, steps divided by computed steps, ≥ 1.
        compute_last: whether the last step computes although `steps` leaves it out. It is worth more than any other,
            unless weights were fitted to do without it.

    Raises:
        ConfigError: a value out of range, or what needs `made_for` without it.
        StateError: at the first decision of a run that lacks one of the steps, or whose step count is unknown.
    """

    steps: tuple[int, ...]
    made_for: int | None = None
    made_for_noises: tuple[float, ...] | None = None
    shorter: tuple[tuple[int, ...], ...] = ()
    num_computed: Count | None = None
    speedup: float | None = None
    compute_last: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        is_list = isinstance(self.steps, Iterable) and not isinstance(self.steps, (str, bytes))
        if not is_list or not all(map(is_whole, self.steps)):
            raise field_error(self, "steps", "be a sequence of whole numbers")
        object.__setattr__(self, "steps", tuple(sorted(set(self.steps))))
        if self.made_for is not None and not is_whole(self.made_for, 2):
            raise field_error(self, "made_for", "be a whole number of at least 2")
        if self.made_for_noises is not None:
            noises = check_finite_list(self, "made_for_noises", self.made_for_noises)
            object.__setattr__(self, "made_for_noises", noises)
            if len(noises) != self.made_for or any(a < b for a, b in pairwise(noises)):
                raise field_error(self, "made_for_noises", f"be {self.made_for} descending numbers")
        for name in ("shorter", "num_computed", "speedup"):
            if self.made_for is None and getattr(self, name) not in (None, ()):
                raise field_error(self, name, "be left out without made_for")
        if self.num_computed is not None and self.speedup is not None:
            raise field_error(self, "speedup", "be left out when num_computed is given")
        check_amount(self, self.num_computed, self.speedup)

    @property
    def expects_reuse(self) -> bool:
        """Nothing to warn of where these steps are all steps: so they were chosen."""
        return False

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        return _schedule(self, total, noises if self.made_for_noises is not None else None)

    def count(self, total: int) -> int | None:
        """How many steps of another run compute, where that was asked for."""
        if self.speedup is not None:
            return min(max(nearest(total, self.speedup), 2), total)
        return None if self.num_computed is None else min(self.num_computed, total)


@lru_cache(maxsize=256)
def _schedule(policy: Steps, total: int, noises: tuple[float, ...] | None) -> frozenset[int]:
    if policy.made_for is not None:
        known = [{step % policy.made_for for step in each} for each in (policy.steps, *policy.shorter)]
        known[0] |= {policy.made_for - 1} if policy.compute_last else set()
        carried = _carried_over(
            known,
            policy.made_for,
            total,
            policy.made_for_noises,
            noises,
            count=policy.count(total),
            compute_last=policy.compute_last,
        )
        if carried is not None:
            return carried
    beyond = [step for step in policy.steps if not -total <= step < total]
    if beyond:
        raise StateError(
            f"{policy!r} names step {beyond[0]}, but this run has {total} steps; give a schedule for {total}"
        )
    last = [total - 1] if policy.compute_last else []
    return frozenset({0, *last, *(step % total for step in policy.steps)})


def _carried_over(
    choices: Sequence[set[int]],
    made_for: int,
    total: int,
    made_for_noises: tuple[float, ...] | None,
    noises: tuple[float, ...] | None,
    *,
    count: int | None = None,
    compute_last: bool,
) -> frozenset[int] | None:
    """The steps of a run that correspond to those of a run of `made_for`; None where the two runs are alike.

    As large a share of the steps as in the first choice, unless `count` says how many. They follow the choice whose
    number of steps is nearest: by noise where both runs' noise fractions are known, else by number. Where the scheduler
    is shifted and the steps are not few, they are spread by noise as if nothing were known: another shift moves the
    steps that are worth most.

    Args:
        choices: computed steps; those of the plan itself first.
        compute_last: whether a spread computes the last step in any case.
    """
    pairs = None if made_for_noises is None or noises is None else (made_for_noises, noises)
    if made_for == total and (pairs is None or all(abs(a - b) <= SAME_NOISE for a, b in zip(*pairs, strict=True))):
        return None
    if count is None:
        count = min(max(round(len({0, *choices[0]}) * total / made_for), 2), total)
    known = min((sorted({0, *each}) for each in choices), key=lambda each: abs(math.log(len(each) / count)))
    # Where a path through the known steps is after equal shares of them.
    aimed = np.interp(np.linspace(0, len(known) - 1, count), range(len(known)), known)
    if pairs is None:
        wanted = (aimed / max(known[-1], 1) * (total - 1)).tolist()
    else:
        there, here = np.array(pairs[0]), np.array(pairs[1])
        left = np.interp(aimed, range(made_for), there)
        wanted = np.abs(here[:, None] - left).argmin(0).tolist()
        unshifted = np.interp(np.arange(total) * made_for / total, range(made_for + 1), [*there, 0.0])
        is_shifted = np.abs(here - unshifted).max() > SHIFTED and (np.diff(here) < 0).all()
        if is_shifted and FEW * total <= count < total:
            return spread_by_noise(pairs[1], count, 1, compute_last=compute_last)
    computed = [0]
    for number in range(1, count):
        computed.append(min(max(round(wanted[number]), computed[-1] + 1), total - count + number))
    # Without known noise no weights are carried over, and the last step must not be forecast.
    if made_for - 1 in known or pairs is None:
        computed[-1] = total - 1
    return frozenset(computed)
