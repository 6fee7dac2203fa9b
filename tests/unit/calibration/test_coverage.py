"""The bound that nine of ten pictures reach: its factors, its ranks, and how often it holds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from omnireuse.profiles.coverage import FACTORS, FEWEST, FEWEST_FOR_ORDER, bound_of_few, lower_bound


@pytest.mark.parametrize(
    ("number", "factor"), [(5, 3.407), (8, 2.582), (10, 2.355), (15, 2.068), (20, 1.926), (28, 1.799)]
)
def test_the_factors_are_those_of_the_tables(number: int, factor: float) -> None:
    # ISO 16269-6, one-sided, 95 % confidence of 90 % coverage.
    assert FACTORS[number - FEWEST] == pytest.approx(factor, abs=6e-4)
    assert len(FACTORS) == FEWEST_FOR_ORDER - FEWEST
    assert all(more < fewer for fewer, more in pairwise(FACTORS))


@given(some.lists(some.floats(0, 100), min_size=FEWEST, max_size=FEWEST_FOR_ORDER - 1))
def test_no_bound_is_above_the_smallest_value(values: list[float]) -> None:
    assert lower_bound(values) <= min(values)


def test_few_values_have_no_bound() -> None:
    assert lower_bound([50.0] * (FEWEST - 1)) == -math.inf
    assert lower_bound([50.0] * FEWEST) == 50


@pytest.mark.parametrize(("number", "rank"), [(29, 1), (45, 1), (46, 2), (60, 2), (61, 3), (100, 5)])
def test_many_values_are_counted(number: int, rank: int) -> None:
    # The ranks of Hahn and Meeker's table A.17.
    assert lower_bound([float(value) for value in reversed(range(number))]) == rank - 1


def normal(generator: Any, size: int) -> Any:
    return generator.normal(40, 5, size)


def skewed(generator: Any, size: int) -> Any:
    return 50 - generator.exponential(4, size)


TENTHS = {normal: 40 - 1.2816 * 5, skewed: 50 - 4 * math.log(10)}


@pytest.mark.parametrize("sample", TENTHS)
@pytest.mark.parametrize("number", [FEWEST, 8, 12, 24, 32, 60])
def test_the_bound_holds_for_nineteen_of_twenty_samples_and_for_three_of_four_small_ones_of_a_long_tail(
    sample: Any, number: int
) -> None:
    generator = np.random.default_rng(number)
    held = [lower_bound(sample(generator, number).tolist()) <= TENTHS[sample] for _ in range(2000)]
    assert np.mean(held) >= (0.94 if sample is normal or number >= FEWEST_FOR_ORDER else 0.75)


few = some.lists(some.floats(0, 100), min_size=1, max_size=8)


@given(few, some.floats(-20, 20))
def test_the_bound_of_a_few_moves_with_them_and_is_below_their_mean(values: list[float], shift: float) -> None:
    found = bound_of_few(values)
    assert found < sum(values) / len(values)
    assert bound_of_few([value + shift for value in values]) == pytest.approx(found + shift, abs=1e-6)


def test_the_bound_of_a_few_needs_less_where_pictures_are_more_or_more_alike() -> None:
    assert bound_of_few([]) == -math.inf
    margins = [50 - bound_of_few([50.0] * count) for count in range(1, 9)]
    assert margins == sorted(margins, reverse=True)
    margins = [50 - bound_of_few([50 - apart, 50.0, 50 + apart]) for apart in range(0, 30, 5)]
    assert margins == sorted(margins)
    # Three that are alike by chance do not say that all are.
    assert margins[0] > 10


@pytest.mark.parametrize("spread", [3.0, 5.0, 7.0, 9.0])
@pytest.mark.parametrize("number", [2, 3, 5])
def test_the_bound_of_a_few_holds_where_pictures_differ_as_on_known_models(number: int, spread: float) -> None:
    generator = np.random.default_rng(number)
    tenth = 40 - 1.2816 * spread
    held = [bound_of_few(generator.normal(40, spread, number).tolist()) <= tenth for _ in range(2000)]
    assert np.mean(held) > 0.8
    assert spread > 6 or np.mean(held) > 0.95
