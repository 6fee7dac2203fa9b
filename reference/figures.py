"""Pictures of comparisons, and how the pictures of this repository look."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import IO, Any

from omnireuse.errors import MissingExtraError
from omnireuse.lab.front import front
from omnireuse.lab.record import Case, Comparison, Point
from omnireuse.lab.report.clips import read_frames
from omnireuse.lab.report.runs import runs_of, strip
from omnireuse.lab.report.style import DIFFERENCE_GAIN, LIGHT, decibels

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from PIL import Image, ImageChops
except ImportError as missing:
    raise MissingExtraError("a figure", "report") from missing

__all__ = ["comparison_figure", "difference", "explain", "grid_figure", "panels_of", "quiet_axes", "save_figure"]

COLUMNS = 2
WIDTH = 7.2
"""Inches of a plot in the docs: letters of 10 points are as large as the text, and can still be read on a phone."""
DECIBELS = (18.0, 66.0)
"""What is drawn: below, pictures are others; above, the difference is less than the rounding to 8 bits (59 dB)."""
PEERS = ("#c2641a", "#6d4fc2", "#2b6cb8", "#b03a78", "#8a7a1f", "#3f8f9c", "#a0522d", "#7a869a", "#c79a3b", "#5d8f4a")
OURS = (LIGHT["highlight"], "#35a98f", "#7cc7b8", "#0a5c50", "#54b46a", "#2f7d32")
BASELINES = ("#9a9da3", "#6a6f78", "#b9bcc2", "#4a4f59")
_STYLE: dict[Any, Any] = {"font.family": ["sans-serif"], "text.color": LIGHT["ink"]}


def save_figure(figure: Figure, target: Path | IO[bytes], *, dpi: int = 160) -> None:
    """Write `figure` as a PNG; the same figure gives the same bytes."""
    with mpl.rc_context(_STYLE):
        # The version of the library would be stamped into the file otherwise.
        figure.savefig(target, format="png", dpi=dpi, metadata={"Software": None})


def explain(figure: Any, sentence: str, *, points: float = 9.5, share: float = 1.0) -> None:
    """Write above the panels of a matplotlib figure how to read it; a constrained layout makes room for it.

    Args:
        points: size of the letters.
        share: of the figure's width that the text may take, above 0.
    """
    # A letter is about half as wide as it is high, and an inch has 72 points.
    letters = int(share * figure.get_figwidth() * 72 / (0.54 * points))
    figure.suptitle(textwrap.fill(sentence, letters), x=0.01, ha="left", fontsize=points, color=LIGHT["ink"])


def panels_of(count: int, *, sharey: bool = False) -> tuple[Figure, list[Any]]:
    """A figure of the docs' width with `count` panels, two in a row."""
    rows = -(-count // COLUMNS)
    figure = Figure(figsize=(WIDTH, 0.7 + 2.6 * rows), layout="constrained", facecolor="white")
    panels = figure.subplots(rows, COLUMNS, sharey=sharey, squeeze=False).ravel().tolist()
    for unused in panels[count:]:
        unused.set_axis_off()
    return figure, panels[:count]


def quiet_axes(axes: Any, *, grid: str = "y", labels: float = 9.5) -> None:
    """Matplotlib axes of which only the bottom line and a pale grid are left."""
    axes.tick_params(colors=LIGHT["muted"], length=0, labelsize=labels)
    axes.grid(axis=grid, color=LIGHT["line"], linewidth=1)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT["line"])


def comparison_figure(comparison: Comparison) -> Figure:
    """PSNR against computed steps: a panel for each case, a line for each method's front, and one legend for all."""
    low, high = DECIBELS
    cases = comparison.cases
    columns = min(COLUMNS, len(cases))
    rows = -(-len(cases) // columns)
    figure = Figure(figsize=(WIDTH, 2.9 * rows + 2.6), layout="constrained", facecolor="white")
    explain(
        figure,
        "Each line joins the settings of one method: further left computes less, higher is closer to the full run. "
        f"Drawn is from {low:g} dB, below which the picture is another, to {high:g} dB, which is less than the "
        "rounding to 8 bits.",
    )
    looks = _looks([point for case in cases for point in case.points])
    drawn: dict[str, Any] = {}
    for number, case in enumerate(cases):
        axes = figure.add_subplot(rows, columns, number + 1)
        _panel(axes, case, looks, drawn)
    # Ours first, as they are read first.
    order = [name for name in looks if name in drawn]
    figure.legend(
        [drawn[name] for name in order], order, loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )
    return figure


def _panel(axes: Any, case: Case, looks: dict[str, dict[str, Any]], drawn: dict[str, Any]) -> None:
    for name, look in looks.items():
        points = front(point for point in case.points if point.method == name)
        if points:
            steps = [point.computed_steps for point in points]
            levels = [point.psnr.mean for point in points if point.psnr is not None]
            (drawn[name],) = axes.plot(steps, levels, **look)
    axes.set_title(case.name, loc="left", fontsize=10)
    axes.set_xlabel(f"computed steps of {case.steps}")
    axes.set_ylabel("PSNR to the full run, dB")
    axes.set_xlim(0, case.steps * 0.85)
    axes.set_ylim(*DECIBELS)
    axes.grid(color=LIGHT["line"], linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _looks(points: list[Point]) -> dict[str, dict[str, Any]]:
    """Name of each method -> how it is drawn: ours on top, baselines dashed."""
    styles = {
        "ours": {"linewidth": 2.0, "marker": "o", "markersize": 3.5, "zorder": 3},
        "peer": {"linewidth": 1.3, "marker": ".", "markersize": 6, "zorder": 2},
        "baseline": {"linewidth": 1.3, "linestyle": "--", "marker": ".", "markersize": 5, "zorder": 1},
    }
    colours = {"ours": OURS, "peer": PEERS, "baseline": BASELINES}
    looks: dict[str, dict[str, Any]] = {}
    for family, style in styles.items():
        names = dict.fromkeys(point.method for point in points if point.family == family and point.error is None)
        for number, name in enumerate(names):
            again, place = divmod(number, len(colours[family]))
            looks[name] = {**style, "color": colours[family][place]}
            if again:
                # Colours are used up: the dashes tell the methods apart.
                looks[name]["linestyle"] = (0, (5 - again, 1 + again))
    return looks


def grid_figure(case: Case, folder: Path, *, rows: int = 4) -> Figure:
    """One column for each run. For each prompt (the first `rows`) a row of images with the decisions as a strip, and a
    row of their differences to the full run. A clip shows four of its frames.

    Raises:
        ConfigError: an image of the results is not in `folder`.
    """
    runs = runs_of(case)
    rows, columns = min(rows, len(case.prompts)), len(runs)
    with mpl.rc_context(_STYLE):
        width, head, cell, gap, caption = 0.6 + 1.75 * columns, 0.95, 1.55, 0.2, 0.32
        reading = textwrap.wrap(
            "Under each image: its steps from noise to picture, and its difference to the full run, "
            f"{DIFFERENCE_GAIN} times as bright; black is identical.",
            int(width * 15.5),
        )
        row = 2 * cell + caption + 0.36
        height = head + rows * row + 0.42 + 0.17 * len(reading)
        figure = Figure(figsize=(width, height), facecolor=LIGHT["paper"])

        def place(x: float, y: float, w: float, h: float) -> Any:
            axes = figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))
            axes.set_axis_off()
            return axes

        def write(x: float, y: float, text: str, **style: Any) -> None:
            figure.text(x / width, 1 - y / height, text, va="baseline", **style)

        left = (width - columns * cell - (columns - 1) * gap) / 2
        for column, (run, point) in enumerate(zip(runs, (None, *case.points), strict=True)):
            x = left + column * (cell + gap)
            colour = LIGHT[run.tone]
            heavy = "bold" if run.role != "baseline" else "normal"
            write(x, 0.42, run.name, fontsize=10, weight=heavy, color=colour)
            words = f"{case.steps} steps"
            if point is not None and point.speedup is not None and point.psnr is not None:
                words = f"{point.computed_steps:.3g} steps · {point.speedup.median:.1f}× · {decibels(point.psnr.mean)}"
            write(x, 0.64, words, fontsize=7.6, color=LIGHT["muted"])
            for number in range(rows):
                y = head + number * row
                if column == 0:
                    text = textwrap.shorten(case.prompts[number], 120, placeholder="…")
                    write(left, y + 0.02, text, fontsize=8.4, color=LIGHT["ink"])
                y += 0.12
                shown = _pixels(folder / run.samples[number].image)
                place(x, y, cell, cell).imshow(shown, interpolation="nearest")
                below = y + cell + 0.25
                full = _pixels(folder / case.full.samples[number].image)
                if column == 0:
                    words = f"difference to\nthe full run, ×{DIFFERENCE_GAIN}"
                    middle = {"ha": "center", "linespacing": 1.4}
                    write(x + cell / 2, below + cell / 2, words, fontsize=8, color=LIGHT["muted"], **middle)
                else:
                    place(x, below, cell, cell).imshow(difference(shown, full), interpolation="nearest")
                branches = strip(run.samples[number])
                for line, (_, cells) in enumerate(branches):
                    thick = 0.13 / len(branches)
                    axes = place(x, y + cell + 0.06 + line * thick, cell, thick * (0.86 if len(branches) > 1 else 1))
                    axes.set_xlim(0, len(cells))
                    axes.set_ylim(0, 1)
                    for index, (reused, _) in enumerate(cells):
                        axes.axvspan(index + 0.06, index + 0.94, color=LIGHT["line"] if reused else colour, linewidth=0)
        foot = head + rows * row + 0.04
        for at, colour, text in ((0.0, "full", "computed step"), (1.25, "line", "reused step")):
            axes = place(left + at, foot, 0.15, 0.1)
            axes.axvspan(0, 1, color=LIGHT[colour], linewidth=0)
            axes.set_xlim(0, 1)
            write(left + at + 0.22, foot + 0.095, text, fontsize=8, color=LIGHT["muted"])
        for line, text in enumerate(reading):
            write(left, foot + 0.32 + 0.17 * line, text, fontsize=8.4, color=LIGHT["ink"])
    return figure


def difference(image: Image.Image, full: Image.Image) -> Image.Image:
    """|image − full| of every channel, `DIFFERENCE_GAIN` times as bright."""
    return ImageChops.difference(image, full).point(lambda level: DIFFERENCE_GAIN * level)


def _pixels(path: Path) -> Image.Image:
    """An image as it is, or four frames of a clip, evenly spaced and read like a page."""
    frames = read_frames(path)
    if len(frames) == 1:
        return frames[0]
    width, height = frames[0].size
    gap = max(1, width // 32)
    sheet = Image.new("RGB", (2 * width + gap, 2 * height + gap), LIGHT["paper"])
    for place in range(4):
        frame = frames[round(place * (len(frames) - 1) / 3)]
        sheet.paste(frame, ((width + gap) * (place % 2), (height + gap) * (place // 2)))
    return sheet
