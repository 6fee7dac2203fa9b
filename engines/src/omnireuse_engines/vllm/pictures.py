"""What the pictures of the commands share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["COLOURS", "explain", "quiet_axes", "write_picture"]

COLOURS = {
    "card": "#ffffff",
    "ink": "#1d2026",
    "muted": "#62676f",
    "line": "#e3e1da",
    "full": "#4a4f59",
    "highlight": "#0c7c6c",
    "first": "#ad5713",
    "second": "#6d4fc2",
    "third": "#2b6cb8",
    "good": "#1a7a48",
    "bad": "#c0343a",
}
"""By role. Texts have a contrast of at least 4.5 on the card."""


def write_picture(draw: Callable[[], Any], path: Path) -> str:
    """Write a matplotlib figure as a PNG, if matplotlib is installed; says which it was.

    Args:
        draw: makes the figure. The same figure gives the same bytes.
    """
    if find_spec("matplotlib") is None:
        return f"no {path.name}, as matplotlib is not installed; pip install matplotlib"
    import matplotlib as mpl

    figure = draw()
    with mpl.rc_context({"font.family": ["sans-serif"], "text.color": COLOURS["ink"]}):
        # The version of the library would be stamped into the file otherwise.
        figure.savefig(path, format="png", dpi=160, metadata={"Software": None})
    return f"wrote {path}"


def explain(figure: Any, sentence: str) -> None:
    """Write above the panels of a figure how to read it; a constrained layout makes room for it."""
    points = 9.5
    # A letter is about half as wide as it is high, and an inch has 72 points.
    letters = int(figure.get_figwidth() * 72 / (0.54 * points))
    figure.suptitle(textwrap.fill(sentence, letters), x=0.01, ha="left", fontsize=points, color=COLOURS["ink"])


def quiet_axes(axes: Any, *, grid: str = "y", labels: float = 9.5) -> None:
    """Axes of which only the bottom line and a pale grid are left."""
    axes.tick_params(colors=COLOURS["muted"], length=0, labelsize=labels)
    axes.grid(axis=grid, color=COLOURS["line"], linewidth=1)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["line"])
