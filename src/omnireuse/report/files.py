"""The files of a report."""

from __future__ import annotations

from pathlib import Path

from omnireuse.report.figure import grid_figure, quality_figure, save_figure
from omnireuse.report.page import render_page
from omnireuse.report.results import Comparison

__all__ = ["write_report"]


def write_report(comparison: Comparison, images: Path, out: Path) -> tuple[Path, ...]:
    """Write report.html, report.png (image grid) and quality.png (quality against compute) to `out`.

    Args:
        images: the folder that the image names in the results are relative to.

    Returns:
        The paths written.

    Raises:
        ConfigError: an image is missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    page, grid, quality = out / "report.html", out / "report.png", out / "quality.png"
    page.write_text(render_page(comparison, images), encoding="utf-8")
    save_figure(grid_figure(comparison, images), grid, "png")
    save_figure(quality_figure(comparison), quality, "png")
    return page, grid, quality
