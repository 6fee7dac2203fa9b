"""Pictures of a comparison: the images side by side with their decisions, and quality against compute."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import IO, Any

from omnireuse.errors import MissingExtraError
from omnireuse.evaluation.metrics import IDENTICAL_DB
from omnireuse.evaluation.report.clips import read_frames
from omnireuse.evaluation.report.results import Comparison
from omnireuse.evaluation.report.style import DIFFERENCE_GAIN, LIGHT, decibels, explain, quiet_axes, strip, tones

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from PIL import Image, ImageChops
except ImportError as missing:
    raise MissingExtraError("a figure", "report") from missing

__all__ = ["difference", "grid_figure", "quality_figure", "save_figure"]

_STYLE: dict[Any, Any] = {"font.family": ["sans-serif"], "text.color": LIGHT["ink"]}


def save_figure(figure: Figure, target: Path | IO[bytes]) -> None:
    """Write `figure` as a PNG; the same figure gives the same bytes."""
    with mpl.rc_context(_STYLE):
        # The version of the library would be stamped into the file otherwise.
        figure.savefig(target, format="png", dpi=160, metadata={"Software": None})


def quality_figure(comparison: Comparison, *, size: tuple[float, float] = (6.4, 4.4)) -> Figure:
    """PSNR over computed steps; a line falls from each cache to the run of fewer steps that spends the same."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained", facecolor=LIGHT["card"])
        axes = figure.add_subplot()
        axes.set_facecolor("none")
        explain(
            figure,
            "Each dot is the mean over the prompts: further left computes less, higher is closer to the full run; a "
            "line falls from each cache to plain fewer steps at the same compute.",
        )
        tone = tones(comparison)
        place = {v.name: (v.computed_steps, min(v.psnr, IDENTICAL_DB)) for v in comparison.variants[1:]}
        caches = [variant for variant in comparison.variants if variant.role == "cache"]
        floors = sorted(place[variant.name] for variant in comparison.variants if variant.role == "floor")
        for cache in caches:
            floor, colour = comparison.floor(cache), LIGHT[tone[cache.name]]
            if floor is not None:
                axes.plot(*zip(place[cache.name], place[floor.name], strict=True), color=colour, alpha=0.45)
            axes.plot(*place[cache.name], "o", markersize=9, color=colour, label=cache.name, zorder=3)
        if floors:
            axes.plot(
                *zip(*floors, strict=True),
                linestyle=(0, (2, 2)),
                marker="o",
                markersize=7,
                color=LIGHT["muted"],
                markerfacecolor=LIGHT["card"],
                linewidth=1.2,
                label="fewer steps",
            )
        axes.axvline(comparison.steps, color=LIGHT["full"], linewidth=1.2, label=comparison.reference.name)
        axes.set_xlim(0, comparison.steps * 1.03)
        axes.margins(y=0.16)
        axes.set_xlabel("computed steps", color=LIGHT["muted"], fontsize=9.5)
        axes.set_ylabel("PSNR to the full run, dB", color=LIGHT["muted"], fontsize=9.5)
        quiet_axes(axes)
        # Names below the plot cannot cover a point or each other.
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9.5, labelcolor=LIGHT["ink"])
    return figure


def grid_figure(comparison: Comparison, folder: Path, *, rows: int = 4) -> Figure:
    """One column a variant, and for each prompt (the first `rows`) a row of images with the decisions as a strip, and a
    row of their differences to the full run.

    A clip shows four of its frames, from the first to the last.

    Raises:
        ConfigError: an image of the results is not in `folder`.
    """
    tone = tones(comparison)
    rows = min(rows, len(comparison.prompts))
    columns = len(comparison.variants)
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
        for column, variant in enumerate(comparison.variants):
            x = left + column * (cell + gap)
            colour = LIGHT[tone[variant.name]]
            heavy = "bold" if variant.role != "floor" else "normal"
            write(x, 0.42, variant.name, fontsize=10, weight=heavy, color=colour)
            steps = f"{variant.computed_steps:.3g} steps"
            quality = "" if variant.role == "reference" else f" · {decibels(variant.psnr)}"
            speed = "" if variant.role == "reference" else f" · {comparison.speedup(variant):.1f}×"
            write(x, 0.64, f"{steps}{speed}{quality}", fontsize=7.6, color=LIGHT["muted"])
            for number in range(rows):
                y = head + number * row
                if column == 0:
                    text = textwrap.shorten(comparison.prompts[number], 120, placeholder="…")
                    write(left, y + 0.02, text, fontsize=8.4, color=LIGHT["ink"])
                y += 0.12
                shown = _pixels(folder / variant.samples[number].image)
                place(x, y, cell, cell).imshow(shown, interpolation="nearest")
                below = y + cell + 0.25
                full = _pixels(folder / comparison.reference.samples[number].image)
                if column == 0:
                    words = f"difference to\nthe full run, ×{DIFFERENCE_GAIN}"
                    middle = {"ha": "center", "linespacing": 1.4}
                    write(x + cell / 2, below + cell / 2, words, fontsize=8, color=LIGHT["muted"], **middle)
                else:
                    place(x, below, cell, cell).imshow(difference(shown, full), interpolation="nearest")
                branches = strip(variant, number)
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
