from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnireuse_lab.closeness import Mean, bootstrap
from omnireuse_lab.front import answers, front, psnr_at
from omnireuse_lab.record import Case, Point, Reference


def point(steps: float, decibels: float, family: str = "peer", **given: Any) -> Point:
    mean = Mean(mean=decibels, low=decibels, high=decibels)
    given = {"method": family, "settings": {}, "call": "call", **given}
    return Point(**given, family=family, computed_steps=steps, psnr=mean, each=(decibels,))


def case(*points: Point) -> Case:
    return Case(pipeline="p", steps=28, guidance=1.0, prompts=("a",), full=Reference(), points=points)


@given(st.lists(st.floats(min_value=0, max_value=100), min_size=1, max_size=30))
def test_an_interval_holds_its_mean_and_lies_within_the_values(values: list[float]) -> None:
    made = bootstrap(values)
    assert min(values) - 1e-9 <= made.low <= made.mean + 1e-9
    assert made.mean - 1e-9 <= made.high <= max(values) + 1e-9
    assert made == bootstrap(values)


def test_a_front_keeps_what_nothing_beats() -> None:
    failed = Point(method="broken", family="peer", settings={}, call="", error="no")
    best = [point(7, 30), point(14, 40), point(20, 50)]
    assert front([best[2], point(16, 39), failed, best[0], point(14, 35), best[1]]) == best


def test_between_points_a_front_is_straight_and_below_its_cheapest_it_has_no_answer() -> None:
    points = [point(7, 30), point(14, 40), point(20, 50)]
    assert psnr_at(points, 17) == pytest.approx(45)
    assert psnr_at(points, 6.9) is None
    # Within a larger budget, what a smaller one gave can still be had.
    assert psnr_at(points, 28) == 50
    assert psnr_at([], 30) is None


OURS = [point(5, 30, "ours"), point(10, 50, "ours")]
PEERS = [point(10, 30), point(20, 50)]


def test_answers_are_decibels_above_the_best_of_the_others_at_equal_steps() -> None:
    found = answers(case(*OURS, *PEERS, point(7, 20, "baseline"), point(14, 34, "baseline")))
    assert found["dB above the best other cache, 2x fewer steps"] == pytest.approx(50 - 38)
    assert found["dB above the best without a cache, 2x fewer steps"] == pytest.approx(16)
    assert "dB above the best other cache, 4x fewer steps" not in found, "no peer is as cheap"
    assert found["dB above the best without a cache, 4x fewer steps"] == pytest.approx(38 - 20)
