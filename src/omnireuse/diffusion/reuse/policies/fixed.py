"""A schedule that is known before the run: no measurement, no synchronisation, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from omnireuse.diffusion.reuse.policies.spread import carried_over, spread_by_noise, spread_by_number
from omnireuse.diffusion.reuse.policy import Limit, Policy, StepView
from omnireuse.diffusion.reuse.validation import check_finite_list, field_error, is_number, is_whole
from omnireuse.errors import StateError

__all__ = ["SHORT_RUN", "FixedSchedule"]

SHORT_RUN = 20
"""Runs of fewer steps gain nothing from reuse: as many computed steps of a shorter run of the same solver are as close
to the full run (``python -m bench few_steps``)."""


@dataclass(frozen=True, kw_only=True)
class FixedSchedule(Policy):
    """Compute at steps chosen beforehand and reuse at all others. The first step always computes.

    Give at most one of `steps`, `every`, `num_computed` and `speedup`; without any, every second step computes. Beside
    `steps` with `made_for`, `num_computed` or `speedup` says how many compute in other runs.

    Args:
        steps: the steps that compute, counted from 0. A negative step counts from the end.
        every: compute every so many steps, ≥ 1, after the warm-up.
        num_computed: how many steps compute in all, above `warmup` and at least 2; the first and the last step are
            among them. A shorter run computes all of its steps.
        speedup: steps divided by computed steps, ≥ 1. The number of computed steps is rounded to the nearest, halves
            up, and never below what the warm-up and the last step need.
        made_for: length of the run that `steps` were chosen for; a run of another length computes as large a share of
            its steps, or what `num_computed` or `speedup` ask for, spread in the same way. None takes `steps` as they
            are, whatever the length.
        made_for_noises: share of noise at each step of that run, descending. A run with other shares computes where as
            much noise is left, roughly. None goes by the steps' numbers; so does a run whose noise is not known.
        shorter: schedules of fewer computed steps for that run. A run that computes fewer follows the one whose number
            is nearest, and computes its last step if that one does.
        warmup: steps at the start that always compute, ≥ 0; they count as computed steps.
        power: how `num_computed` or `speedup` spread their steps by number: the k-th of n gaps ends at (k / n)^power of
            the way, ≥ 1. 1 spreads them evenly; above 1 they are closest at the beginning.
        by_noise: spread them by noise instead, as a share of the run's first noise: evenly in (1 − noise)^0.4, or near
            the steps of a flow-matching run of shift 3 where fewer than 0.4 of the steps compute. Runs whose noise is
            not known, or does not fall from step to step, go by `power`.
        min_computed: with `speedup`, the least number of steps that compute, ≥ 2.
        min_steps: with `speedup`, the least number of steps of a run that reuses; shorter runs compute everything, ≥ 2.
        compute_last: whether the last step computes although `steps` leaves it out, or although it has so little noise
            left that `by_noise` has a better use for it. Otherwise it is worth more than any other, unless weights were
            fitted to do without it.

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
    made_for_noises: tuple[float, ...] | None = None
    shorter: tuple[tuple[int, ...], ...] = ()
    warmup: int = 1
    power: float = 1.0
    by_noise: bool = False
    min_computed: int | None = None
    min_steps: int | None = None
    compute_last: bool = True

    def __post_init__(self) -> None:
        given = [name for name in ("steps", "every", "num_computed", "speedup") if getattr(self, name) is not None]
        if len(given) > 1 and (self.made_for is None or given not in (["steps", "num_computed"], ["steps", "speedup"])):
            raise field_error(self, given[1], "be left out when another way of choosing is given", f"also {given[0]}")
        if self.steps is not None:
            is_list = isinstance(self.steps, Iterable) and not isinstance(self.steps, (str, bytes))
            if not is_list or not all(map(is_whole, self.steps)):
                raise field_error(self, "steps", "be a sequence of whole numbers")
            object.__setattr__(self, "steps", tuple(sorted(set(self.steps))))
        if self.made_for_noises is not None:
            noises = check_finite_list(self, "made_for_noises", self.made_for_noises)
            object.__setattr__(self, "made_for_noises", noises)
            if len(noises) != self.made_for or any(a < b for a, b in pairwise(noises)):
                raise field_error(self, "made_for_noises", f"be {self.made_for} descending numbers")
        if self.shorter and self.made_for is None:
            raise field_error(self, "shorter", "be left out without made_for")
        spreads, by_share = bool({"num_computed", "speedup"} & {*given}), self.speedup is not None
        least = self._always if is_whole(self.warmup) else 2
        first = "step" if least == 2 else f"{self.warmup} steps (warmup)"
        checks = (
            ("made_for", is_whole(self.made_for, 2) and self.steps is not None, "2, given with steps"),
            ("every", is_whole(self.every, 1), "1"),
            ("warmup", is_whole(self.warmup, 0), "0"),
            ("num_computed", is_whole(self.num_computed, 1), "1"),
            ("min_computed", is_whole(self.min_computed, 2) and by_share, "2, given with speedup"),
            ("min_steps", is_whole(self.min_steps, 2) and by_share, "2, given with speedup"),
        )
        for name, is_right, least_text in checks:
            if not is_right and getattr(self, name) is not None:
                raise field_error(self, name, f"be a whole number of at least {least_text}")
        if self.num_computed is not None and self.num_computed < least:
            must = f"be at least {least}, for the first {first} and the last always compute"
            raise field_error(self, "num_computed", must)
        for name in ("speedup", "power"):
            if getattr(self, name) is not None and not (is_number(getattr(self, name)) and getattr(self, name) >= 1):
                raise field_error(self, name, "be a finite number of at least 1")
        if not isinstance(self.by_noise, bool):
            raise field_error(self, "by_noise", "be True or False")
        for name, default in (("power", 1), ("by_noise", False)):
            if getattr(self, name) != default and not spreads:
                raise field_error(self, name, "be left out unless num_computed or speedup is given")
        if not isinstance(self.compute_last, bool) or not (
            self.compute_last or self.by_noise or self.steps is not None
        ):
            raise field_error(self, "compute_last", "be True unless steps or by_noise are given")

    @property
    def expects_reuse(self) -> bool:
        """Whether anything but a schedule of every step was asked for."""
        return self.speedup != 1 and self.every != 1 and self.steps is None

    def warmup_limit(self, total: int | None) -> Limit | None:
        return Limit("warmup", self.warmup)

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        return _schedule(self, total, noises if self.by_noise or self.made_for_noises is not None else None)

    def wants_reuse(self, state: None, view: StepView) -> bool:
        if view.total is not None:
            return view.index not in self.schedule(view.total, view.noises)
        if self.steps is None and self.num_computed is None and self.speedup is None:
            return view.index >= self.warmup and (view.index - max(self.warmup - 1, 0)) % (self.every or 2) != 0
        raise StateError(
            f"{self!r} depends on the number of steps, which is not known; call handle.expect(num_inference_steps), "
            "or refresh(pipeline, num_inference_steps) of a cache backend"
        )

    def caution(self, total: int, noises: tuple[float, ...] | None = None) -> str | None:
        if self.steps is not None or (self.num_computed is None and self.speedup is None):
            return None
        computed = len(self.schedule(total, noises))
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
        """How many steps compute whatever is asked for: the warm-up and the last."""
        return max(self.warmup, 1) + 1

    def _budget(self, total: int) -> int:
        """How many steps compute."""
        if self.speedup is None:
            return min(self.num_computed or 0, total)
        if self.min_steps is not None and total < self.min_steps:
            return total
        return min(max(_nearest(total, self.speedup), self.min_computed or 0, self._always), total)


def _nearest(total: int, speedup: float) -> int:
    return math.floor(total / speedup + 0.5)


@lru_cache(maxsize=256)
def _schedule(policy: FixedSchedule, total: int, noises: tuple[float, ...] | None) -> frozenset[int]:
    if policy.steps is not None:
        return _explicit(policy, policy.steps, total, noises)
    warmup = max(policy.warmup, 1)
    if policy.num_computed is None and policy.speedup is None:
        return frozenset({*range(min(warmup, total)), *range(warmup - 1, total, policy.every or 2), total - 1})
    budget = policy._budget(total)
    if budget >= total:
        return frozenset(range(total))
    if noises is not None and all(a > b for a, b in pairwise(noises)):
        return spread_by_noise(noises, budget, warmup, compute_last=policy.compute_last)
    return spread_by_number(total, budget, warmup, policy.power)


def _explicit(
    policy: FixedSchedule, steps: tuple[int, ...], total: int, noises: tuple[float, ...] | None
) -> frozenset[int]:
    if policy.made_for is not None:
        known = [{step % policy.made_for for step in each} for each in (steps, *policy.shorter)]
        known[0] |= {policy.made_for - 1} if policy.compute_last else set()
        carried = carried_over(
            known,
            policy.made_for,
            total,
            policy.made_for_noises,
            noises,
            count=None if policy.num_computed is None and policy.speedup is None else policy._budget(total),
            compute_last=policy.compute_last,
        )
        if carried is not None:
            return carried
    beyond = [step for step in steps if not -total <= step < total]
    if beyond:
        raise StateError(
            f"{policy!r} names step {beyond[0]}, but this run has {total} steps; give a schedule for {total}"
        )
    return frozenset({0, *([total - 1] if policy.compute_last else []), *(step % total for step in steps)})
