from __future__ import annotations

from msgspec.structs import replace

from lab.tests.comparisons import peers
from omnireuse_lab.closeness import Mean, MedianRange
from omnireuse_lab.front import front, is_noise, leading
from omnireuse_lab.report.plot import plot_case

CASE = peers().cases[0]


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
        timed = replace(point, speedup=MedianRange(median=median, low=median, high=median))
        assert is_noise(case, timed) == noise
