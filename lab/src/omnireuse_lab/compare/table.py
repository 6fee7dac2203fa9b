"""A comparison on the terminal: each method's own front, and the answers to the questions."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from omnireuse_lab.closeness import Mean
from omnireuse_lab.front import answers, front, is_noise, leading
from omnireuse_lab.record import Case, Point

__all__ = ["answers_table", "case_table"]

STYLES = {"ours": "bold green", "peer": "", "baseline": "dim"}


def case_table(case: Case) -> Table:
    """A row for each setting that no other setting of the same method beats; a star if no method does."""
    points, best = list(_shown(case)), leading(case)
    timed = any(point.speedup for point in points)
    table = Table(title=f"{case.name}: {len(case.prompts)} prompts", title_justify="left", box=None, expand=True)
    beaten = len(case.points) - len(points)
    table.caption = "means, with the interval of 95 % of the PSNR; * the best at its cost" + (
        "; speed-ups: median of the timed prompts (lowest–highest)" if timed else ""
    )
    if beaten:
        why = "as another setting of the method is as good with as few steps"
        table.caption += f"; not shown: {beaten}, {why}; the page named below shows all"
    table.add_column("", width=1)
    table.add_column("method and settings", ratio=1, overflow="fold")
    for heading in ("steps", "PSNR, dB", "SSIM", *case.full.scores, *(["speed-up"] if timed else []), "kept, KiB"):
        table.add_column(heading, justify="right", max_width=10)
    for point in points:
        settings = ", ".join(f"{name}={value}" for name, value in point.settings.items())
        noise = "noise: faster than its computed steps allow" if is_noise(case, point) else ""
        error = "" if point.error is None else point.error.splitlines()[0]
        cells = "\n".join(words for words in (point.method, settings, noise, error) if words)
        figures = [] if point.error else _figures(case, point, timed=timed)
        table.add_row("*" if point in best else "", cells, *figures, style=STYLES[point.family])
    return table


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


def _figures(case: Case, point: Point, *, timed: bool) -> Iterator[str]:
    yield f"{point.computed_steps:.1f}"
    yield "" if point.psnr is None else f"{point.psnr.mean:.1f}\n{point.psnr.low:.1f}–{point.psnr.high:.1f}"
    yield _mean(point.ssim)
    yield from (_mean(point.scores.get(name)) for name in case.full.scores)
    if timed:
        ratio = point.speedup
        yield "" if ratio is None else f"{ratio.median:.2f}×\n{ratio.low:.2f}–{ratio.high:.2f}"
    yield "" if point.kept_bytes is None else f"{point.kept_bytes / 1024:.0f}"


def _mean(mean: Mean | None) -> str:
    return "" if mean is None else f"{mean.mean:.3f}"
