"""The tables of docs/figures.md, "Methods from papers": the best setting of each method within shares of the steps.

python scripts/method_table.py [bench/results/papers.json [worst]]

"worst" adds the worst caption of that setting, and gives its computed steps as a share.
"""

from __future__ import annotations

import sys
from pathlib import Path

from omnireuse.evaluation.record import Case, Point, read_comparison

SHARES = (0.5, 0.36, 0.25)
"""Of the steps; rounded, and half a step more is allowed."""
KINDS = {"shapes-flux": "images", "shapes-wan": "clips"}


def main(path: str = "bench/results/papers.json", worst: str = "") -> None:
    """Print a line for each method, the best at half of the steps in the first case first."""
    cases = sorted(read_comparison(Path(path)).cases, key=lambda case: (case.pipeline, -case.guidance))
    names = dict.fromkeys(point.method for case in cases for point in case.points)
    titles = [
        f"{KINDS[case.pipeline]}, {f'guidance {case.guidance:g}' if case.guidance > 1 else 'none'}" for case in cases
    ]
    print(f"| | {' | '.join(titles)} |\n|---{'|---' * len(cases)}|")
    for name in sorted(names, key=lambda name: -_mean(_best(cases[0], name, SHARES[0]))):
        print(f"| {name} | {' | '.join(_cell(case, name, with_worst=worst == 'worst') for case in cases)} |")


def _cell(case: Case, method: str, *, with_worst: bool) -> str:
    if all(point.method != method for point in case.points):
        return "not measured"
    texts = []
    for point in (_best(case, method, share) for share in SHARES):
        if point is None:
            texts.append("–")
        elif with_worst:
            texts.append(f"{_mean(point):.1f}, {min(point.each):.1f} ({100 * _steps(point) / case.steps:.0f} %)")
        else:
            texts.append(f"{_mean(point):.1f} ({_steps(point):.1f})")
    return " · ".join(texts)


def _best(case: Case, method: str, share: float) -> Point | None:
    """The best setting that computes no more than this share of the steps."""
    most = round(case.steps * share) + 0.5
    points = [point for point in case.points if point.method == method and point.psnr is not None]
    return max((point for point in points if _steps(point) <= most), key=_mean, default=None)


def _mean(point: Point | None) -> float:
    return 0.0 if point is None or point.psnr is None else point.psnr.mean


def _steps(point: Point) -> float:
    assert point.computed_steps is not None
    return point.computed_steps


if __name__ == "__main__":
    main(*sys.argv[1:])
