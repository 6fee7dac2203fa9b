"""A comparison on the terminal: each method's own front, and the answers to what was asked."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from omnireuse.compare.front import front
from omnireuse.report.pareto import Case, Mean, Point
from omnireuse.report.target_words import target_words

__all__ = ["case_table", "targets_table"]

STYLES = {"ours": "bold green", "peer": "", "floor": "dim"}
LEFT = ("", "method", "settings")


def case_table(case: Case) -> Table:
    """One line for each setting that no other setting of the same method beats; a star where no method does."""
    table = Table(
        title=f"{case.name}: {len(case.prompts)} prompts; means with 95 % intervals", box=None, title_justify="left"
    )
    for heading in (
        "",
        "method",
        "computed",
        "PSNR dB",
        "SSIM",
        "attributes",
        "speed-up",
        "of the loop",
        "KiB kept",
        "settings",
    ):
        table.add_column(heading, justify="left" if heading in LEFT else "right", no_wrap=heading == "method")
    best = front(case.points)
    for point in _shown(case):
        cells = _cells(point) if point.error is None else ["–"] * 7 + [point.error.splitlines()[0]]
        table.add_row(
            "*" if point in best else "", escape(point.method), *map(escape, cells), style=STYLES[point.family]
        )
    return table


def targets_table(case: Case) -> Table:
    """What the comparison is for, answered."""
    table = Table(title=f"{case.name}: ours beside the best of the others", box=None, title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in case.targets.items():
        table.add_row(target_words(name), "–" if value is None else f"{value:+.2f}".lstrip("+"))
    return table


def _shown(case: Case) -> Iterator[Point]:
    for method in dict.fromkeys(point.method for point in case.points):
        points = [point for point in case.points if point.method == method]
        yield from reversed(front(points))
        yield from (point for point in points if point.error is not None)


def _cells(point: Point) -> list[str]:
    settings = ", ".join(f"{name}={value}" for name, value in point.settings.items())
    return [
        "–" if point.computed_steps is None else f"{point.computed_steps:.1f}",
        _interval(point.psnr, 1),
        _interval(point.ssim, 3),
        _interval(point.attributes, 3),
        *("–" if each is None else f"{each.median:.2f}×" for each in (point.speedup, point.loop_speedup)),
        "–" if point.retained_bytes is None else f"{point.retained_bytes / 1024:.0f}",
        settings if len(settings) < 90 else settings[:87] + "…",
    ]


def _interval(mean: Mean | None, digits: int) -> str:
    return "–" if mean is None else f"{mean.mean:.{digits}f} [{mean.low:.{digits}f}, {mean.high:.{digits}f}]"
