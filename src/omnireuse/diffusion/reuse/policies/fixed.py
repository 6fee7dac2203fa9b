"""A schedule known before the run: no measurement, no synchronisation, the same on every rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from omnireuse.diffusion.reuse.noise import SAME_NOISE
from omnireuse.diffusion.reuse.policy import Limit, Policy, StepView
from omnireuse.diffusion.reuse.validation import check_finite_list, field_error
from omnireuse.errors import StateError

__all__ = ["FixedSchedule"]


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
        num_computed: how many steps compute in all, ≥ 1, spread behind the warm-up.
        speedup: steps divided by computed steps, ≥ 1; the computed count is rounded down, so the promise is kept
            whenever the run is long enough to compute its first and last step.
        warmup: steps at the start that always compute, ≥ 0; they count towards the number of computed steps.
        power: how `num_computed` or `speedup` spread their steps: the k-th of n gaps ends at (k / n)^power of the way.
            1 spreads them evenly; above 1 they are closest at the beginning, where guidance bends the path most.

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
    compute_last: bool = True

    def __post_init__(self) -> None:
        given = [name for name in ("steps", "every", "num_computed", "speedup") if getattr(self, name) is not None]
        if len(given) > 1:
            raise field_error(self, given[1], "be left out when another way of choosing is given", f"also {given[0]}")
        if self.steps is not None:
            if isinstance(self.steps, (str, bytes)) or not all(_is_int(step) for step in self.steps):
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
        if self.speedup is not None and not (math.isfinite(self.speedup) and self.speedup >= 1):
            raise field_error(self, "speedup", "be a finite number of at least 1")
        if not _is_int(self.warmup) or self.warmup < 0:
            raise field_error(self, "warmup", "be a whole number of at least 0")
        if not (math.isfinite(self.power) and self.power >= 1):
            raise field_error(self, "power", "be a finite number of at least 1")
        if not isinstance(self.compute_last, bool) or (not self.compute_last and self.steps is None):
            raise field_error(self, "compute_last", "be True unless steps are given")
        if self.power != 1 and self.num_computed is None and self.speedup is None:
            raise field_error(self, "power", "be left out unless num_computed or speedup is given")

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
        return _computed_steps(self, total, None if self.made_at is None else noises)


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
    wanted = schedule.num_computed or math.floor(total / (schedule.speedup or 1.0))
    wanted = min(max(wanted, 1), total)
    # The first and last step compute whatever the budget; a warm-up never takes the last step's place in it.
    warmup = min(warmup, max(wanted - 1, 1))
    computed = list(range(warmup))
    gaps = wanted - warmup
    for gap in range(1, gaps + 1):
        aimed = warmup - 1 + round((total - warmup) * (gap / gaps) ** schedule.power)
        # Never a step twice, and never so late that the others have no room.
        computed.append(min(max(aimed, computed[-1] + 1), last - (gaps - gap)))
    return frozenset({*computed, last})


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
