"""The page of a comparison: one HTML file that needs nothing beside itself."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

from omnireuse.errors import MissingExtraError
from omnireuse.report.clips import FRAME_MILLISECONDS, read_frames
from omnireuse.report.figure import quality_figure, save_figure
from omnireuse.report.results import Comparison
from omnireuse.report.style import DARK, LIGHT, decibels, strip, tones

try:
    import jinja2
    from PIL import Image
except ImportError as missing:
    raise MissingExtraError("the report page", "report") from missing

__all__ = ["render_page"]


def render_page(comparison: Comparison, folder: Path) -> str:
    """`comparison` as HTML, with the images or clips that lie in `folder` inside it.

    Raises:
        ConfigError: an image of the results is not in `folder`.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("omnireuse.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["decibels"] = decibels
    names = [sample.image for variant in comparison.variants for sample in variant.samples]
    pictures = {name: _strip_of_frames(folder / name) for name in names}
    return environment.get_template("page.html.j2").render(
        comparison=comparison,
        best=comparison.highlighted,
        floor=comparison.floor(comparison.highlighted),
        tones=tones(comparison),
        themes={"light": LIGHT, "dark": DARK},
        plot=_themed_svg(comparison),
        pictures={name: _data_uri(strip) for name, (strip, _) in pictures.items()},
        frames=max(count for _, count in pictures.values()),
        frame_ms=FRAME_MILLISECONDS,
        strip=strip,
    )


def _strip_of_frames(path: Path) -> tuple[bytes, int]:
    """A PNG with the frames side by side, and their number; a still image as it is."""
    frames = read_frames(path)
    if len(frames) == 1:
        return path.read_bytes(), 1
    width, height = frames[0].size
    joined = Image.new("RGB", (width * len(frames), height))
    for index, frame in enumerate(frames):
        joined.paste(frame, (width * index, 0))
    target = io.BytesIO()
    joined.save(target, format="png", optimize=True)
    return target.getvalue(), len(frames)


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _themed_svg(comparison: Comparison) -> str:
    """The quality plot with its colours as CSS variables, so that a theme reaches it."""
    target = io.BytesIO()
    save_figure(quality_figure(comparison, size=(4.6, 4.9)), target, "svg")
    drawing = target.getvalue().decode()
    drawing = drawing[drawing.index("<svg") :]
    for name, colour in LIGHT.items():
        drawing = drawing.replace(colour, f"var(--{name})")
    # The drawing's own size is in points; the page decides.
    return re.sub(
        r'<svg([^>]*?) width="[^"]*"| height="[\d.]+pt"', lambda m: f"<svg{m[1]}" if m[1] else "", drawing, count=2
    )
