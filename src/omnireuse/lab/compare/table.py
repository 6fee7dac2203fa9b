"""A comparison on the terminal: each method's own front, and the answers to the questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from omnireuse.lab.front import answers, front, is_noise, leading
from omnireuse.lab.record import Case, Point
from omnireuse.pipelines.closeness import Mean, Spread

__all__ = ["answers_table", "case_table"]

STYLES = {"ours": "bold green", "peer": "", "baseline": "dim"}

COLUMNS: dict[str, Callable[[Point], str]] = {
    "computed": lambda point: "" if point.computed_steps is None else f"{point.computed_steps:.1f}",
    "PSNR, dB": lambda point: _mean(point.psnr, 1),
    "SSIM": lambda point: _mean(point.ssim, 3),
    "speed-up": lambda point: _ratio(point.speedup),
    "of the\nloop": lambda point: _ratio(point.loop_speedup),
    "KiB\nkept": lambda point: "" if point.kept_bytes is None else f"{point.kept_bytes / 1024:.0f}",
}
"""Heading -> the cell of a point, empty where there is no figure."""
CLOCKED = "speed-ups: median of the timed prompts, each the fastest of 3 repeats; below: lowest–highest"


def case_table(case: Case) -> Group:
    """Two lines for each setting that no other setting of the same method beats; a star where no method does.

    The first line holds the figures, the second the settings and the interval of the PSNR. A column without figures is
    left out.
    """
    points = list(_shown(case))
    columns = {heading: [cell(point) for point in points] for heading, cell in COLUMNS.items()}
    columns = {heading: cells for heading, cells in columns.items() if any(cells)}
    widths = [max(map(len, (*heading.split("\n"), *cells))) for heading, cells in columns.items()]
    best = leading(case)
    lines: list[RenderableType] = [
        Text(f"{case.name}: {len(case.prompts)} prompts", style="italic"),
        Text("means; below: settings, 95 % interval of the PSNR; * the best at its cost", style="dim"),
        *([Text(CLOCKED, style="dim")] if any(point.speedup for point in points) else []),
        _line("", "method", list(columns), widths, "bold"),
    ]
    for row, point in enumerate(points):
        figures = [cells[row] or "–" for cells in columns.values()]
        lines.append(_line("*" if point in best else "", point.method, figures, widths, STYLES[point.family]))
        details = _details(point) + ("; noise: faster than its computed steps allow" if is_noise(case, point) else "")
        lines.append(Padding(Text(details, style="dim"), (0, 0, 0, 4)))
    return Group(*lines)


def answers_table(case: Case) -> Table:
    """The answers that the comparison is for."""
    table = Table(title=f"{case.name}: ours beside the best of the others", box=None, title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    for words, value in answers(case).items():
        table.add_row(words, f"{value:.2f}")
    if not table.row_count:
        table.add_row("no answer: that takes methods of ours and others that meet in steps or quality")
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


def _details(point: Point) -> str:
    if point.error is not None:
        return point.error.splitlines()[0]
    settings = ", ".join(f"{name}={value}" for name, value in point.settings.items())
    interval = f"{point.psnr.low:.1f}–{point.psnr.high:.1f} dB" if point.psnr else ""
    scores = [f"{name} {_mean(score, 3)}" for name, score in point.scores.items()]
    ratio, clock = point.speedup, "" if point.seconds is None else f"{point.seconds.median:.2f} s"
    clock += "" if ratio is None else f" ({ratio.low:.2f}–{ratio.high:.2f}×)"
    return "; ".join(words for words in (settings, interval, *scores, clock) if words)


def _ratio(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}×"


def _mean(mean: Mean | None, digits: int) -> str:
    return "" if mean is None else f"{mean.mean:.{digits}f}"
