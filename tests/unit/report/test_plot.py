from __future__ import annotations

import pytest
from msgspec.structs import replace

from omnireuse.evaluation.metrics import Mean, bootstrap
from omnireuse.evaluation.report.plot import plot_case
from omnireuse.evaluation.report.runs import curves, runs_of
from tests.helpers.comparisons import STEPS, gallery, peers, point

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
    front = {(dot.point.method, dot.point.computed_steps) for dot in plot_case(CASE).dots if dot.front}
    assert front == {("omnireuse default", 7), ("peer <one>", 10), ("omnireuse default", 14)}


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


def test_methods_differ_in_colour_or_shape() -> None:
    points = tuple(point(f"peer {number}", "peer", 7, 30.0) for number in range(12))
    looks = plot_case(replace(CASE, points=points)).looks
    assert len(set(looks.values())) == len(looks) == 12


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


def test_curves_have_a_value_a_step_on_one_scale_for_all_runs() -> None:
    (case,) = gallery().cases
    drift, error = curves(runs_of(case), 0)
    assert (drift.name, drift.low, drift.high) == ("drift", 0.01, 0.27)
    assert [(line.run, line.branch) for line in drift.lines] == [
        ("TeaCache 0.2", 0), ("TeaCache 0.2", 1), ("omnireuse", 0), ("omnireuse", 1)
    ]  # fmt: skip
    # Steps 1 to 27 were measured; each stands in the middle of its cell, the least at the bottom.
    assert drift.lines[0].path.startswith("M1.5 100.0L2.5 ")
    assert drift.lines[0].path.endswith("L27.5 0.0")
    assert drift.lines[0].path.count("L") == STEPS - 2
    # A forecast can only be judged where the truth was computed too.
    judged = [each for each in case.points[1].samples[0].decisions if each.error is not None and each.branch == "cond"]
    assert error.lines[2].dots.count("M") == len(judged) == 11


def test_what_no_run_measured_has_no_curve() -> None:
    (case,) = gallery().cases
    point = case.points[0]
    bare = tuple(
        replace(sample, decisions=tuple(replace(each, error=None) for each in sample.decisions))
        for sample in point.samples
    )
    runs = runs_of(replace(case, points=(replace(point, samples=bare),), highlight=0))
    assert [curve.name for curve in curves(runs, 0)] == ["drift"]
