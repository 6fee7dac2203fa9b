from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnireuse.lab.front import front, psnr_at, steps_at, targets
from omnireuse.lab.record import Case, FullRun, Point
from omnireuse.pipelines.closeness import Mean, bootstrap


def point(steps: float, decibels: float, family: str = "peer", right: float | None = None, **given: Any) -> Point:
    mean = Mean(mean=decibels, low=decibels, high=decibels)
    attributes = None if right is None else Mean(mean=right, low=right, high=right)
    return Point(
        **{"method": family, "settings": {}, "call": "call", **given},
        family=family,
        computed_steps=steps,
        psnr=mean,
        each=(decibels,),
        attributes=attributes,
    )


def case(*points: Point, attributes: float | None = None) -> Case:
    full = FullRun(attributes=attributes)
    return Case(pipeline="p", steps=28, guidance=1.0, prompts=("a",), full=full, points=points)


@given(st.lists(st.floats(min_value=0, max_value=100), min_size=1, max_size=30))
def test_an_interval_holds_its_mean_and_lies_within_the_values(values: list[float]) -> None:
    made = bootstrap(values)
    assert min(values) - 1e-9 <= made.low <= made.mean + 1e-9
    assert made.mean - 1e-9 <= made.high <= max(values) + 1e-9
    assert made == bootstrap(values)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(3)
    made = [bootstrap(generator.normal(40.0, 5.0, size=24).tolist()) for _ in range(200)]
    covered = sum(each.low <= 40.0 <= each.high for each in made)
    assert 0.87 <= covered / 200 <= 0.98


def test_a_front_keeps_what_nothing_beats() -> None:
    failed = Point(method="broken", family="peer", settings={}, call="", error="no")
    best = [point(7, 30), point(14, 40), point(20, 50)]
    assert front([best[2], point(16, 39), failed, best[0], point(14, 35), best[1]]) == best


def test_between_points_a_front_is_straight_and_outside_it_has_no_answer() -> None:
    points = [point(7, 30), point(14, 40), point(20, 50)]
    assert steps_at(points, 35) == pytest.approx(10.5)
    assert steps_at(points, 40) == pytest.approx(14)
    assert steps_at(points, 29) is None
    assert steps_at(points, 29, below=True) == 7
    assert steps_at(points, 51, below=True) is None
    assert psnr_at(points, 17) == pytest.approx(45)
    assert psnr_at(points, 6.9) is None
    # Within a larger budget, what a smaller one gave can still be had.
    assert psnr_at(points, 28) == 50
    assert steps_at([], 30) is None
    assert psnr_at([], 30) is None


def test_targets_answer_every_question() -> None:
    found = targets(
        case(
            *(point(steps, decibels, "ours", right) for steps, decibels, right in ((5, 30, 0.9), (10, 50, 1.0))),
            *(point(steps, decibels, "peer") for steps, decibels in ((10, 30), (20, 50))),
            *(point(steps, decibels, "baseline") for steps, decibels in ((7, 20), (14, 34))),
            attributes=0.95,
        )
    )
    assert found["steps_over_best_peer_worst"] == pytest.approx(0.5)
    assert found["steps_over_best_peer_median"] == pytest.approx(0.5)
    assert found["steps_over_best_peer_share"] == 1.0
    assert found["db_over_best_peer_at_2x"] == pytest.approx(50 - 38)
    assert found["db_over_best_baseline_at_2x"] == pytest.approx(16)
    # No peer is as cheap as 4x.
    assert found["db_over_best_peer_at_4x"] is None
    assert found["db_over_best_baseline_at_4x"] == pytest.approx(38 - 20)
    assert found["attributes_over_full_at_2x"] == pytest.approx(0.05)
    assert found["attributes_over_full_at_3x"] == pytest.approx(-0.05)


def test_the_worst_ratio_is_where_we_gain_least() -> None:
    ours = [point(10, 30, "ours"), point(14, 50, "ours")]
    peers = [point(20, 30), point(14, 50)]
    found = targets(case(*ours, *peers))
    assert found["steps_over_best_peer_worst"] == pytest.approx(1.0)


def test_settings_of_a_weaker_method_do_not_bend_the_line_of_a_better_one() -> None:
    ours = [point(10, 30, "ours"), point(14, 50, "ours")]
    peers = [point(20, 30), point(24, 50)]
    weaker = [point(12, 31, "ours", method="other")]
    # It lies above 10 steps and 30 dB, and far below the line to 14 and 50.
    assert targets(case(*ours, *weaker, *peers)) == targets(case(*ours, *peers))


def test_a_method_that_is_better_than_asked_at_its_cheapest_serves_with_that() -> None:
    ours = [point(10, 30, "ours"), point(20, 50, "ours")]
    peers = [point(20, 30), point(40, 50)]
    strong = [point(15, 45, method="strong"), point(20, 50, method="strong")]
    found = targets(case(*ours, *peers, *strong))
    # At 40 dB the strong one takes its 15 steps, no line of the other's 30.
    assert found["steps_over_best_peer_worst"] == pytest.approx(17.5 / 15)


def test_without_points_there_are_no_answers() -> None:
    found = targets(case())
    assert found.pop("steps_over_best_peer_share") == 0.0
    assert set(found.values()) == {None}
