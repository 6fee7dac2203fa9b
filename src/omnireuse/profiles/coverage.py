"""What nine of ten new pictures reach, by what a few have shown: lower tolerance bounds.

A bound holds where at least nine of ten pictures of the same kind reach it. It is computed so that it does for 19 of 20
samples: by order statistics where the sample is large enough, whatever the distribution, and else by the normal
distribution, but never above the sample's smallest value, because PSNRs have a long lower tail. ``python -m bench
promise`` shows how often such bounds hold on the reference pipelines, and how tight they are.

Source: Hahn and Meeker, "Statistical Intervals", 1991, sections 4.4 and 5.3.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["FEWEST", "FEWEST_FOR_ORDER", "lower_bound", "tolerance_factor"]

COVERAGE, CONFIDENCE = 0.9, 0.95
FEWEST = 5
"""With fewer values a bound is of no use: it is 11 dB below what nine of ten pictures reach with 5, and 24 dB with 3
(``python -m bench promise``)."""
FEWEST_FOR_ORDER = 29
"""From here on the smallest value is such a bound, whatever the distribution: 0.9²⁹ < 0.05."""


def lower_bound(values: Sequence[float]) -> float:
    """The value that at least nine of ten further ones reach, at a confidence of 95 %; −∞ for fewer than `FEWEST`."""
    if len(values) < FEWEST:
        return -math.inf
    if len(values) >= FEWEST_FOR_ORDER:
        return sorted(values)[_rank(len(values)) - 1]
    normal = statistics.fmean(values) - tolerance_factor(len(values)) * statistics.stdev(values)
    return min(normal, *values)


@lru_cache(maxsize=256)
def _rank(number: int) -> int:
    """The place of the bound among so many sorted values, from 1: the largest at which, with 95 % confidence, at most a
    tenth of all values is below."""
    chance, rank = 0.0, 0
    while chance <= 1 - CONFIDENCE:
        chance += math.comb(number, rank) * (1 - COVERAGE) ** rank * COVERAGE ** (number - rank)
        rank += 1
    return rank - 1


@lru_cache(maxsize=FEWEST_FOR_ORDER)
def tolerance_factor(number: int, confidence: float = CONFIDENCE) -> float:
    """How many standard deviations of so many normal values the bound lies below their mean; for at least three values.

    The bound holds for a share of P(mean − k · deviation ≤ quantile) of the samples. The deviation of a sample, as a
    share of the true one, follows a chi distribution, and the mean a normal one, independently.
    """
    freedom, below = number - 1, statistics.NormalDist().inv_cdf(COVERAGE)
    scale = math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
    places = [place / 200 for place in range(1, 1001)]
    weights = [math.exp(scale + (freedom - 1) * math.log(s) - freedom * s**2 / 2) / 200 for s in places]

    def holds(factor: float) -> float:
        reaches = [math.erfc(-math.sqrt(number / 2) * (factor * s - below)) / 2 for s in places]
        return math.fsum(map(operator.mul, weights, reaches))

    low, high = 0.0, 1000.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) < confidence else (low, middle)
    return high
