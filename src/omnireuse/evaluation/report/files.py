"""The files of a report: what it is made from, and what is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from omnireuse.errors import ConfigError
from omnireuse.evaluation.report.figure import grid_figure, quality_figure, save_figure
from omnireuse.evaluation.report.page import render_page
from omnireuse.evaluation.report.pareto import Pareto, read_pareto
from omnireuse.evaluation.report.results import Comparison, read_results

__all__ = ["REPORT", "rebuild", "write_report"]

REPORT = ("report.html", "report.png", "quality.png")
"""The files that `write_report` writes."""


def write_report(comparison: Comparison, images: Path, out: Path, *, pareto: Pareto | None = None) -> tuple[Path, ...]:
    """Write report.html, report.png (image grid) and quality.png (quality against compute) to `out`.

    Args:
        images: the folder that the image names in the results are relative to.
        pareto: a comparison with peers that the page shows too.

    Returns:
        The paths written.

    Raises:
        ConfigError: an image is missing.
    """
    page, grid, quality = (out / name for name in REPORT)
    _write(page, render_page(comparison, images, pareto=pareto))
    save_figure(grid_figure(comparison, images), grid)
    save_figure(quality_figure(comparison), quality)
    return page, grid, quality


def rebuild(files: Sequence[Path], out: Path | None = None) -> tuple[Path, ...]:
    """Make a report again from the results of a demo, the points of a comparison with peers, or one file of each.

    Args:
        out: a folder, or the page itself where it ends in ".html"; the folder of the first file by default. A folder
            gets the pictures of a demo too. The page is report.html, or without a demo named as the file of points is.

    Returns:
        The paths written.

    Raises:
        ConfigError: a file that is neither, two of a kind, or a missing image.
    """
    demos: list[tuple[Path, Comparison]] = []
    peers: list[tuple[Path, Pareto]] = []
    for path in files:
        if _is_pareto(path):
            peers.append((path, read_pareto(path)))
        else:
            demos.append((path, read_results(path)))
    if max(len(demos), len(peers)) > 1:
        given = ", ".join(str(path) for path in files)
        raise ConfigError(f"report({given}): files must be one of a demo, one of `omnireuse compare` or both")
    demo = demos[0][1] if demos else None
    pareto = peers[0][1] if peers else None
    images = demos[0][0].parent if demos else files[0].parent
    folder = out or files[0].parent
    if folder.suffix == ".html":
        page = folder
    elif demo is not None:
        return write_report(demo, images, folder, pareto=pareto)
    else:
        page = folder / f"{files[0].stem}.html"
    _write(page, render_page(demo, images, pareto=pareto))
    return (page,)


def _is_pareto(path: Path) -> bool:
    """Whether a file says of itself that it holds points; what is wrong with it otherwise is for its reader to say."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("kind") == "pareto"


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
