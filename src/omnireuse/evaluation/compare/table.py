"""A comparison on the terminal: each method's own front, and the answers to what was asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from omnireuse.evaluation.compare.front import front
from omnireuse.evaluation.report.pareto import Case, Mean, Point, Spread
from omnireuse.evaluation.report.target_words import target_words

__all__ = ["case_table", "targets_table"]

STYLES = {"ours": "bold green", "peer": "", "floor": "dim"}


def case_table(case: Case) -> Group:
    """Two lines for each setting that no other setting of the same method beats; a star where no method does.

    The first holds the figures, the second the settings and the interval of the PSNR. A figure that no setting has is
    left out.
    """
    points = list(_shown(case))
    columns = [(heading, cells) for heading, cells in _figures(points) if any(cells)]
    widths = [max(map(len, (*heading.split("\n"), *cells))) for heading, cells in columns]
    best = front(case.points)
    lines: list[RenderableType] = [
        Text(f"{case.name}: {len(case.prompts)} prompts", style="italic"),
        Text("means; below: settings, 95 % interval of the PSNR; * the best at its cost", style="dim"),
        _line("", "method", [heading for heading, _ in columns], widths, "bold"),
    ]
    for row, point in enumerate(points):
        figures = [cells[row] or "–" for _, cells in columns]
        lines.append(_line("*" if point in best else "", point.method, figures, widths, STYLES[point.family]))
        lines.append(Padding(Text(_below(point), style="dim"), (0, 0, 0, 4)))
    return Group(*lines)


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


def _line(mark: str, method: str, figures: Sequence[str], widths: Sequence[int], style: str) -> Table:
    line = Table.grid(padding=(0, 1, 0, 0), expand=True)
    line.add_column(width=1)
    line.add_column(ratio=1)
    for width in widths:
        line.add_column(width=width, justify="right", no_wrap=True)
    line.add_row(mark, Text(method), *figures, style=style)
    return line


def _below(point: Point) -> str:
    """What stands below the name of the method."""
    if point.error is not None:
        return point.error.splitlines()[0]
    settings = ", ".join(f"{name}={value}" for name, value in point.settings.items())
    interval = f"{point.psnr.low:.1f}–{point.psnr.high:.1f} dB" if point.psnr else ""
    return "; ".join(words for words in (settings, interval) if words)


def _figures(points: Sequence[Point]) -> list[tuple[str, list[str]]]:
    """Each heading with its cells; a cell is empty where there is no figure."""
    return [
        ("computed", ["" if point.computed_steps is None else f"{point.computed_steps:.1f}" for point in points]),
        ("PSNR, dB", [_mean(point.psnr, 1) for point in points]),
        ("SSIM", [_mean(point.ssim, 3) for point in points]),
        ("attributes", [_mean(point.attributes, 3) for point in points]),
        ("speed-up", [_times(point.speedup) for point in points]),
        ("of the\nloop", [_times(point.loop_speedup) for point in points]),
        (
            "KiB\nkept",
            ["" if point.retained_bytes is None else f"{point.retained_bytes / 1024:.0f}" for point in points],
        ),
    ]


def _mean(mean: Mean | None, digits: int) -> str:
    return "" if mean is None else f"{mean.mean:.{digits}f}"


def _times(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f}×"
