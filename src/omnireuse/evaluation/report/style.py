"""The one set of colours and words of figures, which the page, the pictures and the table share."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from omnireuse.evaluation.report.results import Comparison, Variant

__all__ = ["DARK", "DIFFERENCE_GAIN", "LIGHT", "decibels", "explain", "quiet_axes", "size", "strip", "tones"]

DIFFERENCE_GAIN = 4
"""How many times as bright a difference to the full run is shown, since the pictures look alike."""

#: Colours by role. Texts have a contrast of 4.5 at least on paper and card.
LIGHT = {
    "paper": "#f7f6f2",
    "card": "#ffffff",
    "ink": "#1d2026",
    "muted": "#62676f",
    "line": "#e3e1da",
    "reused": "#e9e7e1",
    "full": "#4a4f59",
    "highlight": "#0c7c6c",
    "first": "#ad5713",
    "second": "#6d4fc2",
    "third": "#2b6cb8",
    "good": "#1a7a48",
    "bad": "#c0343a",
}
DARK = {
    "paper": "#111315",
    "card": "#1a1d20",
    "ink": "#eceae5",
    "muted": "#9ba1a9",
    "line": "#2c3035",
    "reused": "#2b2f34",
    "full": "#b3b8c0",
    "highlight": "#35c9b1",
    "first": "#f0a05a",
    "second": "#b29bf5",
    "third": "#74aef0",
    "good": "#4fd08b",
    "bad": "#f2777c",
}


def tones(comparison: Comparison) -> dict[str, str]:
    """Name of each variant -> name of its colour; a floor shares the colour of its cache."""
    found = {comparison.reference.name: "full"}
    spare = iter(("first", "second", "third"))
    for variant in comparison.variants:
        if variant.role == "cache":
            found[variant.name] = "highlight" if variant.name == comparison.highlight else next(spare, "muted")
    for variant in comparison.variants:
        found.setdefault(variant.name, found.get(variant.floor_of or "", "muted"))
    return found


def strip(variant: Variant, number: int) -> list[tuple[str, list[tuple[bool, str]]]]:
    """The decisions for prompt `number`: per branch its name and, per step, whether it was reused and in words why.

    A variant that decides nothing computes every step it takes; its strip has one cell a step.
    """
    sample = variant.samples[number]
    if not sample.marks:
        steps = round(sample.computed_steps)
        return [("", [(False, f"step {step + 1} of {steps}: computed") for step in range(steps)])]
    steps = 1 + max(mark.step for mark in sample.marks)
    branches: dict[str, list[tuple[bool, str]]] = {}
    for mark in sample.marks:
        # A step in which a branch was not called keeps its place, so that all strips share one axis.
        cells = branches.setdefault(mark.branch, [(True, f"step {step + 1}: not called") for step in range(steps)])
        words = f"step {mark.step + 1}: {'reused' if mark.reused else 'computed'} ({mark.reason})"
        words += "" if mark.drift is None else f", drift {mark.drift:.3g}"
        words += "" if mark.error is None else f", forecast error {mark.error:.2g}"
        cells[mark.step] = (mark.reused, words)
    return [("" if len(branches) == 1 else branch, cells) for branch, cells in branches.items()]


def decibels(value: float | None, *, signed: bool = False) -> str:
    """A PSNR or a difference of two, for people."""
    if value is None or math.isnan(value):
        return "–"
    if value == math.inf:
        return "identical"
    return f"{value:{'+' if signed else ''}.1f} dB".replace("-", "−")


def size(count: int) -> str:
    """Bytes, for people."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024.0:
            break
        value, unit = value / 1024.0, larger
    return f"{value:.3g} {unit}"


def explain(figure: Any, sentence: str, *, points: float = 9.5, share: float = 1.0) -> None:
    """Write above the panels of a matplotlib figure how to read it; a constrained layout makes room for it.

    Args:
        points: size of the letters.
        share: of the figure's width that the text may take, above 0.
    """
    # A letter is about half as wide as it is high, and an inch has 72 points.
    letters = int(share * figure.get_figwidth() * 72 / (0.54 * points))
    figure.suptitle(textwrap.fill(sentence, letters), x=0.01, ha="left", fontsize=points, color=LIGHT["ink"])


def quiet_axes(axes: Any, *, grid: str = "y", labels: float = 9.5) -> None:
    """Matplotlib axes of which only the bottom line and a pale grid are left."""
    axes.tick_params(colors=LIGHT["muted"], length=0, labelsize=labels)
    axes.grid(axis=grid, color=LIGHT["line"], linewidth=1)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT["line"])
