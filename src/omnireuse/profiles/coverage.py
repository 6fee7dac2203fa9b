"""What nine of ten new pictures reach, by what a few have shown: lower tolerance bounds.

A bound holds if at least nine of ten pictures of the same kind reach it. It is computed so that it does for 19 of 20
samples: by order statistics if the sample is large enough, whatever the distribution, and else by the normal
distribution, but never above the sample's smallest value, because PSNRs have a long lower tail. ``python -m bench
promise`` shows how often such bounds hold on the reference pipelines, and how tight they are.

Too few pictures to tell how much they differ are joined by what is known of other models (`bound_of_few`).

Source: Hahn and Meeker, "Statistical Intervals", 1991, sections 4.4 and 5.3.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["FACTORS", "FEWEST", "FEWEST_FOR_ORDER", "bound_of_few", "lower_bound"]

COVERAGE, CONFIDENCE = 0.9, 0.95
FEWEST = 5
"""With fewer values a bound is of no use: it is 11 dB below what nine of ten pictures reach with 5, and 24 dB with 3
(``python -m bench promise``)."""
FEWEST_FOR_ORDER = 29
"""From here on the smallest value is such a bound, whatever the distribution: 0.9²⁹ < 0.05."""
FACTORS = (
    *(3.4066, 3.0063, 2.7554, 2.5819, 2.4538, 2.3546, 2.2753, 2.2101, 2.1554, 2.1088, 2.0684, 2.0330),
    *(2.0017, 1.9738, 1.9487, 1.9260, 1.9053, 1.8864, 1.8690, 1.8530, 1.8381, 1.8243, 1.8114, 1.7993),
)
"""How many standard deviations the bound of 5 to 28 normal values lies below their mean.

Source: quantiles of the noncentral t distribution, as in ISO 16269-6.
"""

SPREAD, BELIEVED = 6.0, 8
"""Standard deviation of the closeness of pictures on other models, in dB, and how many pictures' word it is worth: the
root mean square, and the scatter, of those of the 36 samples of ``python -m bench promise``."""


def bound_of_few(values: Sequence[float]) -> float:
    """A lower bound in dB from a few values, with a variance estimated from them and from other models; −∞ without any.

    Source of the factor: Natrella's approximation, NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.6.3, with the
    degrees of freedom of the joint variance.
    """
    if not values:
        return -math.inf
    mean, count = statistics.fmean(values), len(values)
    freedom = BELIEVED + count - 1
    squares = BELIEVED * SPREAD**2 + sum((value - mean) ** 2 for value in values)
    covered, sure = (statistics.NormalDist().inv_cdf(share) for share in (COVERAGE, CONFIDENCE))
    a, b = 1 - sure**2 / (2 * freedom), covered**2 - sure**2 / count
    factor = (covered + math.sqrt(covered**2 - a * b)) / a
    return mean - factor * math.sqrt(squares / freedom)


def lower_bound(values: Sequence[float]) -> float:
    """The value that at least nine of ten further ones reach, at a confidence of 95 %; −∞ for fewer than `FEWEST`."""
    if len(values) < FEWEST:
        return -math.inf
    if len(values) >= FEWEST_FOR_ORDER:
        return sorted(values)[_rank(len(values)) - 1]
    normal = statistics.fmean(values) - FACTORS[len(values) - FEWEST] * statistics.stdev(values)
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
