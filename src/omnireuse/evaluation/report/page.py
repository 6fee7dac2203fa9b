"""The page of a comparison: one HTML file that needs nothing beside itself."""

from __future__ import annotations

import base64
import io
from functools import cache
from pathlib import Path
from typing import Any

from omnireuse.errors import ConfigError, MissingExtraError
from omnireuse.evaluation.report.clips import FRAME_MILLISECONDS, read_frames
from omnireuse.evaluation.report.curves import curves
from omnireuse.evaluation.report.pareto import Pareto
from omnireuse.evaluation.report.plot import SHAPES, plot_case
from omnireuse.evaluation.report.points import case_of
from omnireuse.evaluation.report.results import Comparison
from omnireuse.evaluation.report.style import DARK, DIFFERENCE_GAIN, LIGHT, decibels, size, strip, tones
from omnireuse.evaluation.report.target_words import target_words

try:
    import jinja2
    from PIL import Image
except ImportError as missing:
    raise MissingExtraError("the report page", "report") from missing

__all__ = ["COLUMNS", "columns_of", "render_page"]

COLUMNS = {"wide": 9, "middle": 5, "narrow": 3}
"""Pictures in a line, by the width of the window."""


def render_page(comparison: Comparison | None, folder: Path, *, pareto: Pareto | None = None) -> str:
    """A demo's comparison, a comparison with peers, or both as HTML.

    Args:
        folder: where the images or clips of `comparison` lie; they are put inside the page.

    Raises:
        ConfigError: neither of the two, or an image of the results is not in `folder`.
    """
    if comparison is None and pareto is None:
        raise ConfigError("render_page(comparison=None, pareto=None): one of them must be given")
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            **(_demo(comparison, folder) if comparison else {"comparison": None}),
            pareto=pareto,
            cases=[(case, plot_case(case)) for case in pareto.cases] if pareto else [],
            themes={"light": LIGHT, "dark": DARK},
            shapes=SHAPES,
        )
    )


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("omnireuse.evaluation.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(decibels=decibels, size=size, target_words=target_words)
    return environment


def _demo(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """What the template shows of a demo."""
    colours = tones(comparison)
    names = [sample.image for variant in comparison.variants for sample in variant.samples]
    pictures = {name: _picture(folder / name) for name in names}
    case = case_of(comparison)
    count = len(comparison.variants)
    return {
        "comparison": comparison,
        "best": comparison.highlighted,
        "floor": comparison.floor(comparison.highlighted),
        "case": case,
        "plot": plot_case(case, colours),
        "names": [variant.name for variant in comparison.variants[1:]],
        "gain": DIFFERENCE_GAIN,
        "columns": "; ".join(f"--{name}: {columns_of(count, most)}" for name, most in COLUMNS.items()),
        "gains": [comparison.gain(variant) for variant in comparison.variants[1:]],
        "tones": colours,
        "pictures": {name: picture for name, (picture, _) in pictures.items()},
        "frames": max(count for _, count in pictures.values()),
        "frame_ms": FRAME_MILLISECONDS,
        "strip": strip,
        "curves": [curves(comparison, number, colours) for number in range(len(comparison.prompts))],
    }


def columns_of(count: int, most: int) -> int:
    """How many of `count` pictures stand in a line: at most `most` where possible, and none alone in the last line."""
    down, up = range(min(most, count), 1, -1), range(most + 1, count + 1)
    return next((columns for columns in (*down, *up) if count % columns != 1), 1)


def _picture(path: Path) -> tuple[str, int]:
    """An image as it is, or the frames of a clip side by side; as an address that holds it, and how many frames."""
    frames = read_frames(path)
    if len(frames) == 1:
        return _address("png", path.read_bytes()), 1
    width, height = frames[0].size
    joined = Image.new("RGB", (width * len(frames), height))
    for index, frame in enumerate(frames):
        joined.paste(frame, (width * index, 0))
    target = io.BytesIO()
    joined.save(target, format="webp", lossless=True)
    return _address("webp", target.getvalue()), len(frames)


def _address(kind: str, image: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
