"""The page of a comparison: one HTML file that needs nothing beside itself."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

from omnireuse.errors import ConfigError, MissingExtraError
from omnireuse.report.figure import quality_figure, save_figure
from omnireuse.report.results import Comparison
from omnireuse.report.style import DARK, LIGHT, decibels, strip, tones

try:
    import jinja2
except ImportError as missing:
    raise MissingExtraError("the report page", "report") from missing

__all__ = ["render_page"]


def render_page(comparison: Comparison, folder: Path) -> str:
    """`comparison` as HTML, with the images that lie in `folder` inside it.

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
    return environment.get_template("page.html.j2").render(
        comparison=comparison,
        best=comparison.highlighted,
        floor=comparison.floor(comparison.highlighted),
        tones=tones(comparison),
        themes={"light": LIGHT, "dark": DARK},
        plot=_themed_svg(comparison),
        image=lambda name: _data_uri(folder / name),
        strip=strip,
    )


def _data_uri(path: Path) -> str:
    try:
        return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise ConfigError(f"image {path}: {error.strerror or error}; images belong beside their results") from error


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
