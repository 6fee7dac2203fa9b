"""Pareto fronts of a comparison, and the comparison of two fronts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from omnireuse.lab.record import Case, Point

__all__ = ["FEWER", "front", "is_noise", "leading", "nearest_to_half", "psnr_at", "steps_at", "target_words", "targets"]

DECIBELS = tuple(np.arange(30.0, 50.25, 0.5).tolist())
"""PSNRs at which steps are compared."""
FEWER = (2, 3, 4)
"""Ratios at which PSNR is compared: the full run's steps over computed steps."""

CLOCK = 1.05
"""By how much a clock may exceed what computed steps can give before it counts as noise."""

WORDS = {
    "steps_over_best_peer_worst": "share of the best other cache's steps at equal PSNR, worst",
    "steps_over_best_peer_median": "share of the best other cache's steps at equal PSNR, median",
    "steps_over_best_peer_share": "share of 30 to 50 dB where both can be compared",
    "db_over_best_peer_at": "dB above the best other cache, {} fewer steps",
    "db_over_best_baseline_at": "dB above the best without a cache, {} fewer steps",
    "attributes_over_full_at": "attributes right less the full run's, {} fewer steps",
}
"""Targets for people, by the stem of their names."""


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
    if point.computed_steps is None or not point.computed_steps:
        return False
    most = CLOCK * case.steps / point.computed_steps
    return any(each is not None and each.median > most for each in (point.speedup, point.loop_speedup))


def nearest_to_half(points: Sequence[Point], steps: int) -> list[int]:
    """For each method with figures, the place of the point whose computed steps are closest to half of all."""
    best: dict[str, tuple[float, int]] = {}
    for number, point in enumerate(points):
        if point.computed_steps is not None:
            candidate = (abs(point.computed_steps - steps / 2), number)
            best[point.method] = min(best.get(point.method, candidate), candidate)
    return sorted(number for _, number in best.values())


def steps_at(points: Sequence[Point], decibels: float, *, below: bool = False) -> float | None:
    """Computed steps that a front needs for a PSNR, on straight lines between its points; None outside of it.

    Args:
        below: count the cheapest point where it is already better than asked.
    """
    if below and points and decibels < _psnr(points[0]):
        return _steps(points[0])
    return _between(points, decibels, _psnr, _steps)


def psnr_at(points: Sequence[Point], steps: float) -> float | None:
    """PSNR that a front reaches within so many computed steps, on straight lines between its points.

    None where its cheapest point costs more; where its dearest costs less, that one's.
    """
    if points and steps > _steps(points[-1]):
        return _psnr(points[-1])
    return _between(points, steps, _steps, _psnr)


def targets(case: Case) -> dict[str, float | None]:
    """The answers that a comparison is for, by name; None where it has none.

    Settings of one method are joined by straight lines, settings of two methods are not.

    - ``steps_over_best_peer_worst`` and ``…_median``: over 30..50 dB, our computed steps divided by the best peer's at
      equal PSNR; ``…_share`` of that range has an answer on both fronts.
    - ``db_over_best_peer_at_2x``, ``db_over_best_baseline_at_2x``, and at 3x, 4x: our PSNR less theirs at equal steps.
    - ``attributes_over_full_at_2x`` and 3x: of our best point within as many steps, less the full run's.
    """
    ours, peers, baselines = (_fronts(case, family) for family in ("ours", "peer", "baseline"))
    asked = [(_fewest_steps(ours, level, below=True), _fewest_steps(peers, level)) for level in DECIBELS]
    ratios = [own / other for own, other in asked if own is not None and other is not None]
    found: dict[str, float | None] = {
        "steps_over_best_peer_worst": max(ratios, default=None),
        "steps_over_best_peer_median": statistics.median(ratios) if ratios else None,
        "steps_over_best_peer_share": len(ratios) / len(asked),
    }
    for fewer in FEWER:
        own = _best_psnr(ours, case.steps / fewer)
        for name, others in (("peer", peers), ("baseline", baselines)):
            other = _best_psnr(others, case.steps / fewer)
            found[f"db_over_best_{name}_at_{fewer}x"] = None if own is None or other is None else own - other
    for fewer in FEWER[:2]:
        able = front(point for each in ours for point in each)
        best = [point.attributes for point in able if _steps(point) <= case.steps / fewer + 1e-9]
        full, own_mean = case.full.attributes, best[-1] if best else None
        found[f"attributes_over_full_at_{fewer}x"] = None if full is None or own_mean is None else own_mean.mean - full
    return found


def target_words(name: str) -> str:
    """The name of a target for people."""
    stem, _, fewer = name.rpartition("_") if name.endswith("x") else (name, "", "")
    return WORDS.get(stem, stem).format(fewer)


def _fronts(case: Case, family: str) -> list[list[Point]]:
    """The front of each method of a family."""
    methods = dict.fromkeys(point.method for point in case.points if point.family == family)
    return [front(point for point in case.points if point.method == method) for method in methods]


def _fewest_steps(fronts: Sequence[Sequence[Point]], decibels: float, *, below: bool = False) -> float | None:
    cheapest = front(point for points in fronts for point in points)[:1]
    if not below and (not cheapest or decibels < _psnr(cheapest[0])):
        return None
    # A method whose cheapest setting is better than asked serves with that.
    found = [steps_at(points, decibels, below=True) for points in fronts]
    return min((steps for steps in found if steps is not None), default=None)


def _best_psnr(fronts: Sequence[Sequence[Point]], steps: float) -> float | None:
    found = [psnr_at(points, steps) for points in fronts]
    return max((decibels for decibels in found if decibels is not None), default=None)


def _between(
    points: Sequence[Point], at: float, along: Callable[[Point], float], value: Callable[[Point], float]
) -> float | None:
    if not points or not along(points[0]) - 1e-9 <= at <= along(points[-1]) + 1e-9:
        return None
    return float(np.interp(at, [along(point) for point in points], [value(point) for point in points]))


def _steps(point: Point) -> float:
    assert point.computed_steps is not None
    return point.computed_steps


def _psnr(point: Point) -> float:
    assert point.psnr is not None
    return point.psnr.mean
