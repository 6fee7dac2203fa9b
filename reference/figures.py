"""Pictures of comparisons, and how the pictures of this repository look."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import IO, Any

from omnireuse.errors import MissingExtraError
from omnireuse_lab.front import front
from omnireuse_lab.record import Case, Comparison, Point
from omnireuse_lab.report.style import LIGHT

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ImportError as missing:
    raise MissingExtraError("a figure", "lab") from missing

__all__ = [
    "BASELINES",
    "MARKERS",
    "OURS",
    "PEERS",
    "comparison_figure",
    "explain",
    "panels_of",
    "quiet_axes",
    "save_figure",
]

COLUMNS = 2
WIDTH = 7.2
"""Inches of a plot in the docs: letters of 10 points are as large as the text, and can still be read on a phone."""
DECIBELS = (18.0, 66.0)
"""What is drawn: below, pictures are others; above, the difference is less than the rounding to 8 bits (59 dB)."""
OURS = LIGHT["highlight"]
"""The one green, which is omnireuse's alone; its methods differ in `MARKERS`."""
MARKERS = "osD^vPX<>*"
PEERS = ("#c2641a", "#2b6cb8", "#6d4fc2", "#b03a78", "#8a7a1f", "#6fa8dc", "#a0522d", "#7a869a", "#c79a3b", "#d98ab5")
"""Colours of what is not omnireuse, none of them green."""
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
        f"All of omnireuse is green. Drawn is from {low:g} dB, below which the picture is another, to {high:g} dB, "
        "which is less than the rounding to 8 bits.",
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
    axes.set_xlim(0, case.steps)
    axes.set_ylim(*DECIBELS)
    axes.grid(color=LIGHT["line"], linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _looks(points: list[Point]) -> dict[str, dict[str, Any]]:
    """Name of each method -> how it is drawn: ours green and on top, baselines dashed."""
    styles = {
        "ours": {"linewidth": 2.0, "color": OURS, "markersize": 4.5, "zorder": 3},
        "peer": {"linewidth": 1.3, "marker": ".", "markersize": 6, "zorder": 2},
        "baseline": {"linewidth": 1.3, "linestyle": "--", "marker": ".", "markersize": 5, "zorder": 1},
    }
    colours = {"peer": PEERS, "baseline": BASELINES}
    looks: dict[str, dict[str, Any]] = {}
    for family, style in styles.items():
        names = dict.fromkeys(point.method for point in points if point.family == family and point.error is None)
        for number, name in enumerate(names):
            if family == "ours":
                looks[name] = {**style, "marker": MARKERS[number % len(MARKERS)]}
                continue
            again, place = divmod(number, len(colours[family]))
            looks[name] = {**style, "color": colours[family][place]}
            if again:
                # Colours are used up: the dashes tell the methods apart.
                looks[name]["linestyle"] = (0, (5 - again, 1 + again))
    return looks
