"""The picture of a comparison: PSNR against computed steps, a panel for each case, a line for each method's front."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnireuse.errors import MissingExtraError
from omnireuse.evaluation.compare.front import front
from omnireuse.evaluation.report.pareto import Case, Pareto, Point
from omnireuse.evaluation.report.style import LIGHT, explain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["comparison_figure", "save_figure"]

DOTS = 130
"""Pixels of an inch."""
COLUMNS = 2
DECIBELS = (18.0, 66.0)
"""What is drawn: below, pictures are others; above, nobody sees a difference."""
PEERS = ("#c2641a", "#6d4fc2", "#2b6cb8", "#b03a78", "#8a7a1f", "#3f8f9c", "#a0522d", "#7a869a", "#c79a3b", "#5d8f4a")
OURS = (LIGHT["highlight"], "#35a98f", "#7cc7b8", "#0a5c50", "#54b46a", "#2f7d32")
FLOORS = ("#9a9da3", "#6a6f78", "#b9bcc2", "#4a4f59")


def save_figure(pareto: Pareto, path: Path) -> None:
    """Draw `pareto` to a PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    comparison_figure(pareto).savefig(path, dpi=DOTS)


def comparison_figure(pareto: Pareto) -> Figure:
    """A panel a case, with one legend for all.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("the figure of a comparison", "report") from error
    low, high = DECIBELS
    cases = pareto.cases
    columns = min(COLUMNS, len(cases))
    rows = -(-len(cases) // columns)
    figure = Figure(figsize=(6.4 * columns + 3.0, 4.6 * rows + 0.3), layout="constrained", facecolor="white")
    explain(
        figure,
        "Each line joins the settings of one method: further left computes less, higher is closer to the full run. "
        f"Drawn is from {low:g} dB, below which the picture is another, to {high:g} dB, above which nobody sees a "
        "difference.",
        points=11,
        share=6.4 * columns / figure.get_figwidth(),
    )
    looks = _looks([point for case in cases for point in case.points])
    drawn: dict[str, Any] = {}
    for number, case in enumerate(cases):
        axes = figure.add_subplot(rows, columns, number + 1)
        _panel(axes, case, looks, drawn)
    # Ours first, as they are read first.
    order = [name for name in looks if name in drawn]
    figure.legend([drawn[name] for name in order], order, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _panel(axes: Any, case: Case, looks: dict[str, dict[str, Any]], drawn: dict[str, Any]) -> None:
    for name, look in looks.items():
        points = front(point for point in case.points if point.method == name)
        if points:
            steps = [point.computed_steps for point in points]
            levels = [point.psnr.mean for point in points if point.psnr is not None]
            (drawn[name],) = axes.plot(steps, levels, **look)
    axes.set_title(case.name, loc="left", fontsize=11)
    axes.set_xlabel(f"computed steps of {case.steps}")
    axes.set_ylabel("PSNR to the full run, dB")
    axes.set_xlim(0, case.steps * 0.85)
    axes.set_ylim(*DECIBELS)
    axes.grid(color=LIGHT["line"], linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _looks(points: list[Point]) -> dict[str, dict[str, Any]]:
    """Name of each method -> how it is drawn: ours on top, floors dashed."""
    styles = {
        "ours": {"linewidth": 2.2, "marker": "o", "markersize": 4.5, "zorder": 3},
        "peer": {"linewidth": 1.3, "marker": ".", "markersize": 6, "zorder": 2},
        "floor": {"linewidth": 1.3, "linestyle": "--", "marker": ".", "markersize": 5, "zorder": 1},
    }
    colours = {"ours": OURS, "peer": PEERS, "floor": FLOORS}
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
