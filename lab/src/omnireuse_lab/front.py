"""Pareto fronts of a comparison, and the distance between the fronts of two families."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from omnireuse_lab.record import Case, Point

__all__ = ["answers", "front", "is_noise", "leading", "nearest_to_half", "psnr_at"]

FEWER = (2, 3, 4)
"""Ratios at which PSNR is compared: the full run's steps over computed steps."""

CLOCK = 1.05
"""By how much a clock may exceed what computed steps can give before it counts as noise."""


def front(points: Iterable[Point]) -> list[Point]:
    """The points that no other beats in both computed steps and PSNR, cheapest first."""
    kept: list[Point] = []
    for point in sorted(
        (point for point in points if point.error is None), key=lambda each: (_steps(each), -_psnr(each))
    ):
        if not kept or _psnr(point) > _psnr(kept[-1]):
            kept.append(point)
    return kept


def leading(case: Case) -> list[Point]:
    """The front of all methods together, without points as dear as the full run, cheapest first."""
    return [point for point in front(case.points) if _steps(point) < case.steps * (1 - 1e-3)]


def is_noise(case: Case, point: Point) -> bool:
    """Whether the clock shows a speed-up that its computed steps cannot give: then it measured something else."""
    if not point.computed_steps or point.speedup is None:
        return False
    return point.speedup.median > CLOCK * case.steps / point.computed_steps


def nearest_to_half(points: Sequence[Point], steps: int) -> list[int]:
    """For each method with figures, the place of the point whose computed steps are closest to half of all."""
    best: dict[str, tuple[float, int]] = {}
    for number, point in enumerate(points):
        if point.computed_steps is not None:
            candidate = (abs(point.computed_steps - steps / 2), number)
            best[point.method] = min(best.get(point.method, candidate), candidate)
    return sorted(number for _, number in best.values())


def psnr_at(points: Sequence[Point], steps: float) -> float | None:
    """PSNR in dB that a front reaches within so many computed steps, on straight lines between its points.

    None if its cheapest point costs more; if its dearest costs less, that one's.
    """
    if not points or steps < _steps(points[0]) - 1e-9:
        return None
    return float(np.interp(steps, [_steps(point) for point in points], [_psnr(point) for point in points]))


def answers(case: Case) -> dict[str, float]:
    """The dB of our best above the best of the other caches, and of the baselines, at equal steps; by words for it.

    Settings of one method are joined by straight lines, settings of two methods are not. A comparison without an answer
    to a question leaves it out.
    """
    found: dict[str, float] = {}
    for fewer in FEWER:
        ours, peers, baselines = (_best(case, family, case.steps / fewer) for family in ("ours", "peer", "baseline"))
        for words, other in (("best other cache", peers), ("best without a cache", baselines)):
            if ours is not None and other is not None:
                found[f"dB above the {words}, {fewer}x fewer steps"] = ours - other
    return found


def _best(case: Case, family: str, steps: float) -> float | None:
    """The highest PSNR of the fronts of a family's methods at so many steps."""
    methods = dict.fromkeys(point.method for point in case.points if point.family == family)
    fronts = (front(point for point in case.points if point.method == method) for method in methods)
    found = [psnr_at(points, steps) for points in fronts]
    return max((decibels for decibels in found if decibels is not None), default=None)


def _steps(point: Point) -> float:
    assert point.computed_steps is not None
    return point.computed_steps


def _psnr(point: Point) -> float:
    assert point.psnr is not None
    return point.psnr.mean
