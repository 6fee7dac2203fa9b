from __future__ import annotations

import pytest
from msgspec.structs import replace

from omnireuse_lab.closeness import Mean, Spread, bootstrap
from omnireuse_lab.front import front, is_noise, leading
from omnireuse_lab.report.plot import plot_case
from tests.helpers.comparisons import peers, point

CASE = peers().cases[0]


def test_a_dot_stands_at_its_steps_and_between_the_ends_of_its_interval() -> None:
    dots = {(dot.point.method, dot.x): dot for dot in plot_case(CASE).dots}
    dot = dots["omnireuse default", 50.0]
    assert dot.high < dot.y < dot.low, "per cent are counted from the top"
    low, high = dots["fewer steps", 25.0], dots["fewer steps", 50.0]
    per_decibel = (low.y - high.y) / 10.0
    assert low.y - dot.y == pytest.approx(24.0 * per_decibel, abs=0.05)
    assert all(0.0 <= value <= 100.0 for dot in dots.values() for value in (dot.x, dot.y, dot.low, dot.high))


def test_the_front_is_what_nothing_beats_for_as_little() -> None:
    best = {(dot.point.method, dot.point.computed_steps) for dot in plot_case(CASE).dots if dot.front}
    assert best == {("omnireuse default", 7), ("peer <one>", 10), ("omnireuse default", 14)}


def test_a_line_joins_the_best_settings_of_one_method_in_the_order_of_their_steps() -> None:
    points = (
        point("a", "ours", 9, 40.0),
        point("b", "peer", 8, 39.0),
        point("a", "ours", 7, 30.0),
        point("a", "ours", 8, 29.0),
    )
    lines = plot_case(replace(CASE, points=points)).lines
    found = [(one.point.computed_steps, other.point.computed_steps) for one, other in lines]
    assert found == [(7, 9)], "what another setting of its method beats stands beside the line"


def test_identical_pictures_stand_on_the_edge_and_do_not_press_the_others_together() -> None:
    same = replace(CASE.points[3], psnr=Mean(mean=100.0, low=100.0, high=100.0))
    plot = plot_case(replace(CASE, points=(*CASE.points[:3], same)))
    assert next(dot.y for dot in plot.dots if dot.point is same) == 0.0
    assert plot.y_ticks == plot_case(replace(CASE, points=CASE.points[:3])).y_ticks


def test_the_interval_of_a_mean_narrows_with_more_values_and_repeats() -> None:
    few, many = [30.0, 40.0] * 2, [30.0, 40.0] * 50
    assert bootstrap(few) == bootstrap(few)
    (a, b), (c, d) = ((made.low, made.high) for made in (bootstrap(few), bootstrap(many)))
    # Of two values 5 from their mean, the mean of n is 5 / √n off: at 100 of them the interval is ±1.96 × 0.5.
    assert (c, d) == (pytest.approx(35 - 0.98, abs=0.15), pytest.approx(35 + 0.98, abs=0.15))
    assert a < c < 35 < d < b
    assert bootstrap([7.0]) == Mean(mean=7.0, low=7.0, high=7.0)


def test_what_computes_everything_leads_nowhere() -> None:
    (case,) = peers().cases
    whole = replace(case.points[0], computed_steps=float(case.steps), psnr=Mean(mean=100.0, low=100.0, high=100.0))
    case = replace(case, points=(*case.points, whole))
    assert whole in front(case.points)
    assert whole not in leading(case)
    assert not any(dot.front for dot in plot_case(case).dots if dot.point is whole)


def test_a_clock_that_shows_more_than_steps_can_give_is_noise() -> None:
    (case,) = peers().cases
    point = replace(case.points[0], computed_steps=case.steps / 2)
    for median, noise in ((1.9, False), (2.05, False), (2.3, True)):
        timed = replace(point, speedup=Spread(median=median, low=median, high=median))
        assert is_noise(case, timed) == noise
