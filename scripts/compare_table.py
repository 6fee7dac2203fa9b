"""The tables of docs/figures.md, "Comparison with other caches", from the results of `python -m bench compare`.

python scripts/compare_table.py [bench/results/compare.json]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from omnireuse.evaluation.front import FEWER
from omnireuse.evaluation.metrics import Mean, Spread
from omnireuse.evaluation.record import Case, Point, read_comparison

SHORT = {
    "best of its own timesteps": "own timesteps",
    "fewer uniform steps": "fewer steps",
    "omnireuse, calibrated": "calibrated",
    "omnireuse, default": "default",
}
KINDS = {"shapes-flux": "images", "shapes-wan": "clips"}


def main(path: str = "bench/results/compare.json") -> None:
    """Print one table for each number of steps."""
    cases = read_comparison(Path(path)).cases
    for steps in sorted({case.steps for case in cases}):
        chosen = sorted(
            (case for case in cases if case.steps == steps), key=lambda each: (each.pipeline, -each.guidance)
        )
        print(f"{steps} steps:\n")
        rows = [list(column) for column in zip(*map(_column, chosen), strict=True)]
        names = [name for name, _ in _rows(chosen[0])]
        print(f"| | {' | '.join(_heading(case) for case in chosen)} |\n|---{'|---' * len(chosen)}|")
        for name, row in zip(names, rows, strict=True):
            print(f"| {name} | {' | '.join(row)} |")
        print()


def _heading(case: Case) -> str:
    return f"{KINDS[case.pipeline]}, {f'guidance {case.guidance:g}' if case.guidance > 1 else 'none'}"


def _column(case: Case) -> list[str]:
    return [text for _, text in _rows(case)]


def _rows(case: Case) -> Iterator[tuple[str, str]]:
    yield "captions", str(len(case.prompts))
    for fewer in FEWER:
        most = case.steps / fewer + 0.5
        yield (
            f"{fewer}×: calibrated, steps and dB (95 %)",
            _best(case, most, "ours", "omnireuse, calibrated", bold=True),
        )
        if fewer == FEWER[0]:
            yield f"{fewer}×: default", _best(case, most, "ours", "omnireuse, default")
        yield f"{fewer}×: best other cache", _best(case, most, "peer")
        yield f"{fewer}×: best baseline", _best(case, most, "baseline")
    for what, family in (("cache", "peer"), ("baseline", "baseline")):
        values = [case.targets[f"db_over_best_{family}_at_{fewer}x"] for fewer in FEWER]
        yield f"above the best {what} at 2×, 3×, 4×, dB", ", ".join("–" if v is None else f"{v:+.1f}" for v in values)
    ratios = [case.targets[f"steps_over_best_peer_{which}"] for which in ("median", "worst")]
    yield (
        "steps at equal PSNR, 30–50 dB, over the best cache's: median, worst",
        ", ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    )
    points = [case.targets[f"attributes_over_full_at_{fewer}x"] for fewer in FEWER[:2]]
    yield (
        "attributes right less the full run's at 2×, 3×, points",
        ", ".join("–" if value is None else f"{100 * value:+.1f}" for value in points),
    )
    for method in ("omnireuse, calibrated", "omnireuse, default", "omnireuse, default by call"):
        timed = [point for point in case.points if point.method == method and point.speedup is not None]
        yield (
            f"half of the steps by the clock, {SHORT.get(method, method.removeprefix('omnireuse, '))}: call; loop",
            _clock(timed),
        )


def _best(case: Case, most: float, family: str, method: str | None = None, *, bold: bool = False) -> str:
    able = [
        (point.psnr.mean, point)
        for point in case.points
        if point.family == family
        and point.psnr is not None
        and _steps(point) <= most
        and method in (None, point.method)
    ]
    if not able:
        return "–"
    _, point = max(able, key=lambda each: each[0])
    assert point.psnr is not None
    mean = f"**{point.psnr.mean:.1f}**" if bold else f"{point.psnr.mean:.1f}"
    if method is not None:
        return f"{_steps(point):.0f}: {mean} ({_interval(point.psnr)})"
    name = SHORT.get(point.method, point.method.removeprefix("diffusers ").removeprefix("cache-dit "))
    return f"{mean} {name}, {_steps(point):.1f}"


def _clock(timed: Iterable[Point]) -> str:
    point = next(iter(timed), None)
    if point is None or point.speedup is None or point.loop_speedup is None:
        return "–"
    return f"{_spread(point.speedup)}; {_spread(point.loop_speedup)}"


def _spread(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f}–{spread.high:.2f})"


def _interval(mean: Mean) -> str:
    return f"{mean.low:.1f}–{mean.high:.1f}"


def _steps(point: Point) -> float:
    assert point.computed_steps is not None
    return point.computed_steps


if __name__ == "__main__":
    main(*sys.argv[1:])
