"""A schedule of so many computed steps, spread by number or by noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from omnireuse.base.validation import Count, Factor, Index, Several, check_fields, field_error
from omnireuse.policies.base import Limit, Schedule

__all__ = ["SHORT_RUN", "Spread", "cheapest_path", "nearest", "spread_by_noise"]

SHORT_RUN = 20
"""Runs of fewer steps gain nothing from reuse: as many computed steps of a shorter run of the same solver are as close
to the full run (``python -m bench few_steps``)."""
POWER = 1.7
"""The spread of computed steps by number, in runs of unknown noise (``python -m bench step_reuse``)."""


@dataclass(frozen=True, kw_only=True)
class Spread(Schedule):
    """A schedule of computed steps, spread over the run as in the default. Give `num_computed` or `speedup`.

    Args:
        num_computed: how many steps are computed in all, above `warmup` and at least 2; the first step is among them. A
            shorter run computes all of its steps.
        speedup: steps divided by computed steps, ≥ 1. The number of computed steps is rounded to the nearest, halves
            up, and never below what the warm-up and the last step need.
        warmup: steps at the start that are always computed, ≥ 0; they count as computed steps.
        by_noise: spread the steps by noise, as a share of the run's first noise, evenly in (1 − noise)^0.4, or ^0.5
            below 0.4 of the steps. Runs whose noise is not known, or does not fall, go by `power`.
        power: spreads them by number: the k-th of n gaps ends at (k / n)^power of the way, ≥ 1. 1 spreads them evenly;
            above 1 they are closest at the beginning.
        min_computed: with `speedup`, the least number of steps that are computed, ≥ 2.
        min_steps: with `speedup`, the least number of steps of a run that reuses; shorter runs compute everything, ≥ 2.
        compute_last: whether the last step is computed although `by_noise` has a better use for so little noise; by
            number it is always computed.

    Raises:
        ConfigError: both ways of choosing or none, or a value out of range.
        StateError: at the first decision of a run whose step count is unknown.
    """

    num_computed: Count | None = None
    speedup: Factor | None = None
    warmup: Index = 1
    power: Factor = POWER
    by_noise: bool = True
    min_computed: Several | None = None
    min_steps: Several | None = None
    compute_last: bool = False

    def __post_init__(self) -> None:
        if (self.num_computed is None) == (self.speedup is None):
            raise field_error(self, "speedup", "be given, or num_computed, and not both")
        check_fields(self)
        least = max(self.warmup, 1) + 1
        if self.num_computed is not None and self.num_computed < least:
            first = "step" if least == 2 else f"{self.warmup} steps (warmup)"
            must = f"be at least {least}, because the first {first} and the last are always computed"
            raise field_error(self, "num_computed", must)
        for name in ("min_computed", "min_steps"):
            if getattr(self, name) is not None and self.speedup is None:
                raise field_error(self, name, "be given with speedup")

    @property
    def expects_reuse(self) -> bool:
        """True if anything but a schedule of every step was asked for."""
        return self.speedup != 1

    def warmup_limit(self, total: int | None) -> Limit | None:
        return Limit("warmup", self.warmup)

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        return _schedule(self, total, noises if self.by_noise else None)

    def caution(self, total: int, noises: tuple[float, ...] | None = None) -> str | None:
        if self.num_computed is not None and self.num_computed >= total > 2:
            return (
                f"{self.num_computed} computed steps are asked for and the run has {total}, so all are computed; ask "
                "for fewer to reuse some"
            )
        computed = len(self.schedule(total, noises))
        if self.speedup is not None:
            asked = nearest(total, self.speedup)
            if computed == total and self.min_steps is not None and total < self.min_steps and asked < total:
                return (
                    f"all {total} steps are computed: in runs of fewer than {self.min_steps} steps plain fewer steps "
                    "are better than reuse; to save time, take fewer steps"
                )
            if self.min_computed is None and computed > asked:
                return (
                    f"speedup={self.speedup:g} asks for {asked} of {total} steps, but {computed} compute: the first "
                    f"{max(self.warmup, 1)} (warmup) and the last always do"
                )
        if self.min_steps is None and total < SHORT_RUN and computed < total:
            return (
                f"{computed} of {total} steps are computed; in runs of fewer than {SHORT_RUN} steps plain fewer steps "
                f"are often better than reuse: compare with a run of {computed} steps"
            )
        return None

    def budget(self, total: int) -> int:
        """Number of computed steps of a run."""
        if self.speedup is None:
            return min(self.num_computed or 0, total)
        if self.min_steps is not None and total < self.min_steps:
            return total
        always = max(self.warmup, 1) + 1
        return min(max(nearest(total, self.speedup), self.min_computed or 0, always), total)


def nearest(total: int, speedup: float) -> int:
    """Number of computed steps for a speed-up, halves rounded up."""
    return math.floor(total / speedup + 0.5)


@lru_cache(maxsize=256)
def _schedule(policy: Spread, total: int, noises: tuple[float, ...] | None) -> frozenset[int]:
    warmup, budget = max(policy.warmup, 1), policy.budget(total)
    if budget >= total:
        return frozenset(range(total))
    if noises is not None and all(a > b for a, b in pairwise(noises)):
        return spread_by_noise(noises, budget, warmup, compute_last=policy.compute_last)
    return _spread_by_number(total, budget, warmup, policy.power)


def _spread_by_number(total: int, count: int, warmup: int, power: float) -> frozenset[int]:
    """The warm-up, then gaps of which the k-th of n ends at (k / n)^power of the way; `count` < `total` steps."""
    computed, gaps = list(range(warmup)), count - warmup
    for gap in range(1, gaps + 1):
        aimed = warmup - 1 + round((total - warmup) * (gap / gaps) ** power)
        # Never a step twice, and never so late that the others have no room.
        computed.append(min(max(aimed, computed[-1] + 1), total - 1 - (gaps - gap)))
    return frozenset({*computed, total - 1})


EXPONENT, END = 0.4, 2.5
"""The gap after the last computed step counts 2.5 times: no later one corrects it (bench/notes/2026-11-23-rules.md)."""
FEW, FEW_EXPONENT = 0.4, 0.5
"""Of spreads below this share of the steps, which are too few to be as dense early (``python -m bench harm``)."""


def spread_by_noise(noises: tuple[float, ...], count: int, warmup: int, *, compute_last: bool) -> frozenset[int]:
    """The warm-up, then `count` < all steps whose gaps have the least sum of squares, measured in (1 − noise)^0.4.

    Noise counts as a share of what the run begins with: schedulers of Stable Diffusion begin a little below pure noise.

    Args:
        noises: noise fraction at each step, falling.
        compute_last: whether the last step is computed. Otherwise the gap from the last computed step to no noise
            counts too, `END` times: if the last step has little noise left, it is better spent earlier.
    """
    exponent = FEW_EXPONENT if count < FEW * len(noises) else EXPONENT
    # Rounding may leave a shifted scheduler's first noise fraction above 1.
    places = (1 - np.minimum(noises, 1.0)[warmup - 1 :] / min(noises[0], 1.0)) ** exponent
    if not compute_last:
        places = np.append(places, 1.0)
    squares = np.square(places[None, :] - places[:, None])
    if not compute_last:
        squares[:, -1] *= END
    later, earlier = np.tril_indices(len(places), -1)
    ends = np.where(np.arange(len(places)) == len(places) - 1, 0.0, np.inf)
    chosen = cheapest_path(earlier, later, squares[earlier, later], ends, count - warmup + (not compute_last))
    return frozenset({*range(warmup), *(warmup - 1 + step for step in chosen)} - {len(noises)})


def cheapest_path(
    origins: NDArray[np.intp],
    targets: NDArray[np.intp],
    costs: NDArray[np.float64],
    ends: NDArray[np.float64],
    length: int,
) -> list[int]:
    """The nodes of the cheapest path from node 0 along `length` edges: the best schedule of so many gaps.

    Ties go to the lower origin.

    Args:
        origins, targets: (edges,) the nodes of each edge, sorted by target, then by origin.
        costs: (edges,) of each edge.
        ends: (nodes,) the cost of ending at each node; ∞ if no path may end.
    """
    firsts = np.flatnonzero(np.diff(targets, prepend=-1))  # the first edge to each target
    reached, counts = targets[firsts], np.diff(firsts, append=len(targets))
    cheapest = np.full(len(ends), np.inf)
    cheapest[0] = 0.0
    before = []
    for _ in range(length):
        totals = cheapest[origins] + costs
        least = np.minimum.reduceat(totals, firsts)
        is_least = np.flatnonzero(totals == np.repeat(least, counts))
        chosen, cheapest = np.zeros(len(ends), dtype=np.intp), np.full(len(ends), np.inf)
        chosen[reached] = origins[is_least[np.searchsorted(is_least, firsts)]]
        cheapest[reached] = least
        before.append(chosen)
    path = [int((cheapest + ends).argmin())]
    for chosen in reversed(before):
        path.append(int(chosen[path[-1]]))
    return path[::-1]
