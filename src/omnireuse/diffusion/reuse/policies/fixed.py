"""A schedule known before the run: no measurement, no synchronisation, the same on every rank."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from omnireuse.diffusion.reuse.noise import SAME_NOISE
from omnireuse.diffusion.reuse.policy import Limit, Policy, StepView
from omnireuse.diffusion.reuse.validation import check_finite_list, field_error
from omnireuse.errors import StateError

__all__ = ["SHORT_RUN", "FixedSchedule"]

SHORT_RUN = 20
"""Runs of fewer steps gain nothing from reuse: as many computed steps of a shorter run of the same solver are as close
to the full run (``python -m bench few_steps``)."""


@dataclass(frozen=True, kw_only=True)
class FixedSchedule(Policy):
    """Compute at steps chosen beforehand and reuse at all others. The first step always computes.

    Give exactly one of `steps`, `every`, `num_computed` and `speedup`; with none of them every second step computes.

    Args:
        steps: the steps that compute, counted from 0. A negative step counts from the end.
        made_for: length of the run that `steps` were chosen for; a run of another length gets as large a share of its
            steps, spread in the same way. None takes `steps` as they are, whatever the length.
        made_at: share of noise at each step of that run, descending. A run whose steps stand elsewhere, for it is of
            another length or its scheduler shifts its noise, computes where as much noise is left. None goes by the
            steps' numbers; so does a run whose noise is not known.
        every: compute every so many steps, ≥ 1, after the warm-up.
        num_computed: how many steps compute in all, above `warmup` and at least 2, for the first and the last step
            always compute; a shorter run computes all of its steps.
        speedup: steps divided by computed steps, ≥ 1. The number of computed steps is rounded to the nearest, halves
            up, and never below what the warm-up and the last step need.
        warmup: steps at the start that always compute, ≥ 0; they count towards the number of computed steps.
        power: how `num_computed` or `speedup` spread their steps by number: the k-th of n gaps ends at (k / n)^power of
            the way. 1 spreads them evenly; above 1 they are closest at the beginning, where guidance bends the path
            most.
        noise_exponent: spread them by noise instead, as evenly in (1 − noise)^noise_exponent as the run's steps allow
            (the squares of the gaps add up to the least), > 0; noise is σ/(α+σ). So computed steps stand where as much
            noise is left, whatever the scheduler's shift. Runs whose noise is not known, or does not fall from
            step to step, go by `power`.
        min_computed: with `speedup`, the least number of steps that compute, ≥ 2.
        min_steps: with `speedup`, the least number of steps of a run that reuses at all; shorter runs compute
            everything.
        compute_last: whether the last step computes although `steps` leaves it out. Without weights that were fitted to
            do without it, it is worth more than any other.

    Raises:
        ConfigError: more than one way of choosing, or a value out of range.
        StateError: at the first decision of a run, where `steps` names one that the run does not have, or where the
            step count is unknown and the schedule depends on it.
    """

    steps: tuple[int, ...] | None = None
    every: int | None = None
    num_computed: int | None = None
    speedup: float | None = None
    made_for: int | None = None
    made_at: tuple[float, ...] | None = None
    warmup: int = 1
    power: float = 1.0
    noise_exponent: float | None = None
    min_computed: int | None = None
    min_steps: int | None = None
    compute_last: bool = True

    def __post_init__(self) -> None:
        given = [name for name in ("steps", "every", "num_computed", "speedup") if getattr(self, name) is not None]
        if len(given) > 1:
            raise field_error(self, given[1], "be left out when another way of choosing is given", f"also {given[0]}")
        if self.steps is not None:
            is_list = isinstance(self.steps, Iterable) and not isinstance(self.steps, (str, bytes))
            if not is_list or not all(_is_int(step) for step in self.steps):
                raise field_error(self, "steps", "be a sequence of whole numbers")
            object.__setattr__(self, "steps", tuple(sorted(set(self.steps))))
        if self.made_for is not None and (not _is_int(self.made_for) or self.made_for < 2 or self.steps is None):
            raise field_error(self, "made_for", "be a whole number of at least 2, given with steps")
        if self.made_at is not None:
            object.__setattr__(self, "made_at", check_finite_list(self, "made_at", self.made_at))
            if len(self.made_at) != self.made_for or any(a < b for a, b in pairwise(self.made_at)):
                raise field_error(self, "made_at", f"be {self.made_for} descending numbers, given with made_for")
        for name in ("every", "num_computed"):
            value = getattr(self, name)
            if value is not None and (not _is_int(value) or value < 1):
                raise field_error(self, name, "be a whole number of at least 1")
        if self.speedup is not None and not (_is_finite(self.speedup) and self.speedup >= 1):
            raise field_error(self, "speedup", "be a finite number of at least 1")
        if not _is_int(self.warmup) or self.warmup < 0:
            raise field_error(self, "warmup", "be a whole number of at least 0")
        if not (_is_finite(self.power) and self.power >= 1):
            raise field_error(self, "power", "be a finite number of at least 1")
        if not isinstance(self.compute_last, bool) or (not self.compute_last and self.steps is None):
            raise field_error(self, "compute_last", "be True unless steps are given")
        if self.num_computed is not None and self.num_computed < self._always:
            first = "step" if self.warmup < 2 else f"{self.warmup} steps (warmup)"
            must = f"be at least {self._always}, for the first {first} and the last always compute"
            raise field_error(self, "num_computed", must)
        if self.noise_exponent is not None and not (_is_finite(self.noise_exponent) and self.noise_exponent > 0):
            raise field_error(self, "noise_exponent", "be a finite number above 0")
        spreads = self.num_computed is not None or self.speedup is not None
        for name, default in (("power", 1), ("noise_exponent", None)):
            if getattr(self, name) != default and not spreads:
                raise field_error(self, name, "be left out unless num_computed or speedup is given")
        for name in ("min_computed", "min_steps"):
            value = getattr(self, name)
            if value is not None and (not _is_int(value) or value < 2 or self.speedup is None):
                raise field_error(self, name, "be a whole number of at least 2, given with speedup")

    @property
    def asks_for_reuse(self) -> bool:
        """Whether anything but a schedule of every step was asked for."""
        return self.speedup != 1 and self.every != 1 and self.steps is None

    def warmup_of(self, total: int | None) -> Limit:
        """`warmup`."""
        return Limit("warmup", self.warmup)

    def wants_reuse(self, state: None, view: StepView) -> bool:
        """Whether the schedule leaves this step out."""
        if view.total is None:
            if self.steps is None and self.num_computed is None and self.speedup is None:
                return view.index >= self.warmup and (view.index - max(self.warmup - 1, 0)) % (self.every or 2) != 0
            raise StateError(
                f"{self!r} depends on the number of steps, which nobody told; "
                "call refresh(pipeline, num_inference_steps)"
            )
        return view.index not in self.computed_steps(view.total, view.noises)

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        """The steps that compute, which are known ahead of every run."""
        return self.computed_steps(total, noises)

    def computed_steps(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        """The steps that compute in a run of `total` steps, with those shares of noise where they are known."""
        by_noise = self.made_at is not None or self.noise_exponent is not None
        return _computed_steps(self, total, noises if by_noise else None)

    def caution(self, total: int, noises: tuple[float, ...] | None = None) -> str | None:
        """What a user of this schedule should know about a run of `total` steps; None as a rule."""
        if self.num_computed is None and self.speedup is None:
            return None
        computed = len(self.computed_steps(total, noises))
        if self.speedup is not None:
            nearest = _nearest(total, self.speedup)
            if computed == total and self.min_steps is not None and total < self.min_steps and nearest < total:
                return (
                    f"all {total} steps are computed: in runs of fewer than {self.min_steps} steps plain fewer steps "
                    "are better than reuse; to save time, lower num_inference_steps"
                )
            if self.min_computed is None and computed > nearest:
                return (
                    f"speedup={self.speedup:g} asks for {nearest} of {total} steps, but {computed} compute: the first "
                    f"{max(self.warmup, 1)} (warmup) and the last always do"
                )
        if self.min_steps is None and total < SHORT_RUN and computed < total:
            return (
                f"{computed} of {total} steps are computed; in runs of fewer than {SHORT_RUN} steps plain fewer steps "
                f"are often better than reuse: compare with num_inference_steps={computed}"
            )
        return None

    @property
    def _always(self) -> int:
        return max(self.warmup, 1) + 1

    def _budget(self, total: int) -> int:
        """How many steps compute, before the warm-up and the last step are seen to."""
        if self.speedup is None:
            return min(self.num_computed or 0, total)
        if self.min_steps is not None and total < self.min_steps:
            return total
        return min(max(_nearest(total, self.speedup), self.min_computed or 0, self._always), total)


def _nearest(total: int, speedup: float) -> int:
    return math.floor(total / speedup + 0.5)


@lru_cache(maxsize=256)
def _computed_steps(schedule: FixedSchedule, total: int, noises: tuple[float, ...] | None) -> frozenset[int]:
    last = total - 1
    if schedule.steps is not None:
        if schedule.made_for is not None and (schedule.made_for != total or _differ(schedule.made_at, noises)):
            known = {step % schedule.made_for for step in schedule.steps}
            known |= {schedule.made_for - 1} if schedule.compute_last else set()
            return _carried_over(known, schedule.made_for, total, schedule.made_at, noises)
        beyond = [step for step in schedule.steps if not -total <= step < total]
        if beyond:
            raise StateError(
                f"{schedule!r} names step {beyond[0]}, but this run has {total} steps; give a schedule for {total}"
            )
        return frozenset({0, *([last] if schedule.compute_last else []), *(step % total for step in schedule.steps)})
    warmup = max(schedule.warmup, 1)
    if schedule.num_computed is None and schedule.speedup is None:
        return frozenset({*range(min(warmup, total)), *range(warmup - 1, total, schedule.every or 2), last})
    wanted = schedule._budget(total)
    if wanted >= total:
        return frozenset(range(total))
    if schedule.noise_exponent is not None and noises is not None and all(a > b for a, b in pairwise(noises)):
        places = tuple((1 - noise) ** schedule.noise_exponent for noise in noises[warmup - 1 :])
        return frozenset({*range(warmup), *(warmup - 1 + step for step in _evenly(places, wanted - warmup + 1))})
    computed = list(range(warmup))
    gaps = wanted - warmup
    for gap in range(1, gaps + 1):
        aimed = warmup - 1 + round((total - warmup) * (gap / gaps) ** schedule.power)
        # Never a step twice, and never so late that the others have no room.
        computed.append(min(max(aimed, computed[-1] + 1), last - (gaps - gap)))
    return frozenset({*computed, last})


def _evenly(places: tuple[float, ...], count: int) -> list[int]:
    """So many of the ascending places, the first and last among them, that the squares of the gaps add up to least."""
    at = np.asarray(places)
    squares = np.square(at[None, :] - at[:, None])
    squares[np.tril_indices(len(at))] = np.inf
    costs = np.full(len(at), np.inf)
    costs[0] = 0.0
    before = []
    for _ in range(count - 1):
        totals = costs[:, None] + squares
        before.append(totals.argmin(0))
        costs = totals.min(0)
    chosen = [len(at) - 1]
    for each in reversed(before):
        chosen.append(int(each[chosen[-1]]))
    return chosen[::-1]


def _differ(made_at: tuple[float, ...] | None, noises: tuple[float, ...] | None) -> bool:
    if made_at is None or noises is None:
        return False
    return any(abs(here - there) > SAME_NOISE for here, there in zip(made_at, noises, strict=True))


def _carried_over(
    steps: set[int],
    made_for: int,
    total: int,
    made_at: tuple[float, ...] | None,
    noises: tuple[float, ...] | None,
) -> frozenset[int]:
    # The last of them becomes the last of all: what was fitted to do without that one is of no use at other steps.
    known = sorted({0, *steps})
    count = min(max(round(len(known) * total / made_for), 2), total)
    computed = [0]
    for number in range(1, count - 1):
        # Where a path through the known steps is after this share of them.
        place = number / (count - 1) * (len(known) - 1)
        before = min(int(place), len(known) - 2)
        aimed = known[before] + (place - before) * (known[before + 1] - known[before])
        if made_at is None or noises is None:
            nearest = round(aimed / max(known[-1], 1) * (total - 1))
        else:
            left = min(int(aimed), made_for - 2)
            noise = made_at[left] + (aimed - left) * (made_at[left + 1] - made_at[left])
            nearest = min(range(total), key=lambda step: abs(noises[step] - noise))
        computed.append(min(max(nearest, computed[-1] + 1), total - count + number))
    return frozenset({*computed, total - 1})


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
