"""The page of a comparison: one HTML file that needs nothing beside itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omnireuse.errors import ConfigError, MissingExtraError
from omnireuse.lab.front import nearest_to_half, target_words
from omnireuse.lab.record import Case, Comparison, Point, read_comparison
from omnireuse.lab.report.clips import FRAME_MILLISECONDS, read_frames
from omnireuse.lab.report.plot import SHAPES, plot_case
from omnireuse.lab.report.runs import axis_of, runs_of, strip
from omnireuse.lab.report.style import DARK, DIFFERENCE_GAIN, LIGHT, decibels, in_words, size

try:
    import jinja2
    from PIL import Image
except ImportError as missing:
    raise MissingExtraError("the report page", "report") from missing

__all__ = ["COLUMNS", "columns_of", "rebuild", "render_page", "write_page"]


COLUMNS = {"wide": 9, "middle": 5, "narrow": 3}
"""Pictures in a line, by the width of the window."""


def rebuild(files: Sequence[Path], out: Path | None = None) -> Path:
    """Make the page of one or several records again.

    Args:
        out: a folder, or the page itself where it ends in ".html"; the folder of the first file by default. In a folder
            the page has the name of the first file.

    Returns:
        The page.
    """
    comparisons = [read_comparison(path) for path in files]
    with_pictures = [path for path, each in zip(files, comparisons, strict=True) if _galleries([each])]
    if len(with_pictures) > 1:
        raise ConfigError(f"report({', '.join(map(str, with_pictures))}): only one of the files can hold pictures")
    page = out or files[0].parent
    page = page if page.suffix == ".html" else page / f"{files[0].stem}.html"
    return write_page(comparisons, (with_pictures or files)[0].parent, page)


def write_page(comparisons: Sequence[Comparison], folder: Path, page: Path) -> Path:
    """Write the page of `render_page`; returns its path."""
    text = render_page(comparisons, folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return page


def render_page(comparisons: Sequence[Comparison], folder: Path) -> str:
    """Comparisons as HTML; the one with pictures comes first.

    Args:
        comparisons: at least one; at most one case of all may hold pictures.
    """
    galleries = _galleries(comparisons)
    plain = [each for each in comparisons if not _galleries([each])]
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            **(_gallery(*galleries[0], folder) if galleries else {"runs": ()}),
            plain=[(each, [(case, plot_case(case), _worst(case, folder)) for case in each.cases]) for each in plain],
            title=comparisons[0].command,
            themes={"light": LIGHT, "dark": DARK},
            shapes=SHAPES,
        )
    )


def _galleries(comparisons: Sequence[Comparison]) -> list[tuple[Comparison, Case]]:
    return [(each, case) for each in comparisons for case in each.cases if case.full.samples]


def _worst(case: Case, folder: Path) -> list[tuple[Point, str, str]]:
    """Of each method at about half of the steps: its point, the prompt where it differs most, and that picture beside
    the full run's as an address. The worst comes first; those whose file does not lie in `folder` are left out."""
    near = [case.points[place] for place in nearest_to_half(case.points, case.steps)]
    there = [point for point in near if point.worst and (folder / point.worst).exists()]
    return [
        (point, case.prompts[point.each.index(min(point.each))], _address("png", (folder / point.worst).read_bytes()))
        for point in sorted(there, key=lambda point: min(point.each))
    ]


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("omnireuse.lab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(decibels=decibels, in_words=in_words, size=size, target_words=target_words, strip=strip)
    return environment


def _gallery(comparison: Comparison, case: Case, folder: Path) -> dict[str, Any]:
    """The template's view of a case with pictures."""
    runs = runs_of(case)
    pictures = {each.image: _picture(folder / each.image) for run in runs for each in run.samples}
    tones = {point.method: run.tone for point, run in zip(case.points, runs[1:], strict=True) if run.role == "cache"}
    best = case.points[case.highlight]
    baseline = case.baseline_of(best)
    front = {"full", best.title, *([] if baseline is None else [baseline.title])}
    return {
        "comparison": comparison,
        "case": case,
        "plot": plot_case(case, tones),
        "runs": runs,
        "best": best,
        "baseline": baseline,
        "front_runs": tuple(run for run in runs if run.name in front),
        "axis": axis_of(case),
        "gain": DIFFERENCE_GAIN,
        "columns": "; ".join(f"--{name}: {columns_of(len(runs), most)}" for name, most in COLUMNS.items()),
        "pictures": {name: picture for name, (picture, _) in pictures.items()},
        "frames": max(count for _, count in pictures.values()),
        "frame_ms": FRAME_MILLISECONDS,
    }


def columns_of(count: int, most: int) -> int:
    """The pictures in a line, of `count`: at most `most` where possible, and none alone in the last line."""
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
