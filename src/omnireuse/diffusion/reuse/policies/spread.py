"""Where so many computed steps of a run are: spread by number or by noise, or carried over from another run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

from omnireuse.diffusion.reuse.policy import SAME_NOISE
from omnireuse.diffusion.reuse.validation import field_error
from omnireuse.errors import UnknownNameError

__all__ = ["FEW", "SCHEDULES", "carried_over", "cheapest_path", "scm_mask", "spread_by_noise", "spread_by_number"]

SCHEDULES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "slow": ((8, 3, 3, 2, 1, 1), (1, 2, 2, 2, 3)),
    "medium": ((6, 2, 2, 2, 2, 1), (1, 3, 3, 3, 3)),
    "fast": ((6, 1, 1, 1, 1, 1), (1, 3, 4, 5, 4)),
    "ultra": ((4, 1, 1, 1, 1), (2, 5, 6, 7)),
}
"""The named SCM schedules at 28 steps: lengths of the runs of computed steps, and of the reused runs between them.

Source: cache-dit, `steps_mask`.
"""


SHIFTED = 0.04
"""Runs whose noise, after equal shares of their steps, differs by more somewhere have schedulers of another shift: 1.2
in place of 1 (``python -m bench travel``)."""


def spread_by_number(total: int, count: int, warmup: int, power: float) -> frozenset[int]:
    """The warm-up, then gaps of which the k-th of n ends at (k / n)^power of the way; `count` < `total` steps."""
    computed, gaps = list(range(warmup)), count - warmup
    for gap in range(1, gaps + 1):
        aimed = warmup - 1 + round((total - warmup) * (gap / gaps) ** power)
        # Never a step twice, and never so late that the others have no room.
        computed.append(min(max(aimed, computed[-1] + 1), total - 1 - (gaps - gap)))
    return frozenset({*computed, total - 1})


EXPONENT, SHIFT = 0.4, 3.0
"""Computed steps are even in (1 − noise)^0.4, of the noise that the run begins with. Where they are few, they are near
those of a run of shift 3."""
FEW = 0.4
"""Below this share, computed steps are few."""
VERY_FEW = 0.3
"""Below this share, the first of them are worth more than the last."""
END = 2.5
"""Weight of the gap after the last computed step, as no later step corrects its forecasts; 1 where steps are very few.
All five: ``python -m bench few_steps``."""


def spread_by_noise(noises: tuple[float, ...], count: int, warmup: int, *, compute_last: bool) -> frozenset[int]:
    """The warm-up, then `count` < all steps whose gaps have the least sum of squares, measured in a function of noise.

    That is (1 − noise)^0.4, or noise / (3 − 2 · noise) for few steps, which undoes a shift of 3. Noise counts as a
    share of what the run begins with: schedulers of Stable Diffusion begin a little below pure noise.

    Args:
        noises: share of noise at each step, falling.
        compute_last: whether the last step computes. Otherwise the gap from the last computed step to no noise counts
            too, 2.5 times, or once below 0.3 of the steps: where the last step has little noise left, it is better
            spent earlier.
    """
    # Rounding may leave a shifted scheduler's first share of noise above 1.
    left, is_few = np.minimum(noises, 1.0)[warmup - 1 :] / min(noises[0], 1.0), count < FEW * len(noises)
    places, end = (left / (SHIFT - (SHIFT - 1) * left), 0.0) if is_few else ((1 - left) ** EXPONENT, 1.0)
    if not compute_last:
        places = np.append(places, end)
    squares = np.square(places[None, :] - places[:, None])
    if not compute_last:
        squares[:, -1] *= END if count >= VERY_FEW * len(noises) else 1
    squares[np.tril_indices(len(places))] = np.inf
    chosen = cheapest_path(squares, count - warmup + (not compute_last))
    return frozenset({*range(warmup), *(warmup - 1 + step for step in chosen)} - {len(noises)})


def cheapest_path(
    costs: NDArray[np.float64], gaps: int, *, near: Sequence[int] | None = None, reach: int = 0
) -> list[int]:
    """The nodes of the cheapest path from the first node to the last over so many gaps; ties go to the earlier node.

    Args:
        costs: (nodes, nodes) of the gap from one node to another; ∞ where there is none.
        near: a path of as many gaps that no node may be farther from than `reach`.
    """
    cheapest = np.full(len(costs), np.inf)
    cheapest[0] = 0.0
    before = []
    for number in range(1, gaps + 1):
        totals = cheapest[:, None] + costs
        if near is not None:
            totals[:, np.abs(np.arange(len(costs)) - near[number]) > reach] = np.inf
        before.append(totals.argmin(0))
        cheapest = totals.min(0)
    chosen = [len(costs) - 1]
    for each in reversed(before):
        chosen.append(int(each[chosen[-1]]))
    return chosen[::-1]


def carried_over(
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
    number of steps is nearest: by noise where both runs' shares of noise are known, else by number. Where the scheduler
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
