"""The page of the demo: one HTML file with all pictures and decisions."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import jinja2
from PIL import Image

from omnireuse_lab.report.clips import FRAME_MILLISECONDS
from omnireuse_lab.report.page import address, page_templates
from omnireuse_lab.report.plot import plot_case
from reference.demo.record import Demo
from reference.demo.runs import axis_of, runs_of, strip
from reference.pictures import DIFFERENCE_GAIN, read_frames

__all__ = ["COLUMNS", "columns_of", "in_words", "write_demo_page"]

COLUMNS = {"wide": 9, "middle": 5, "narrow": 3}
"""Pictures in a line, by the width of the window."""


def write_demo_page(demo: Demo, folder: Path, page: Path) -> Path:
    """Write the page of a demo whose pictures lie in `folder`; returns its path."""
    runs, case = runs_of(demo), demo.case
    pictures = {each.image: _picture(folder / each.image) for run in runs for each in run.samples}
    tones = {run.name: run.tone for run in runs if run.role == "cache"}
    plain = demo.baseline_of(0)
    templates = page_templates(jinja2.PackageLoader("reference.demo"))
    templates.filters.update(in_words=in_words, strip=strip)
    text = templates.get_template("gallery.html.j2").render(
        comparison=demo.comparison,
        case=case,
        plot=plot_case(case, tones),
        runs=runs,
        best=case.points[0],
        baseline=None if plain is None else case.points[plain],
        gains=demo.gains,
        front_runs=[runs[0], runs[1], *([] if plain is None else [runs[1 + plain]])],
        axis=axis_of(demo),
        gain=DIFFERENCE_GAIN,
        columns="; ".join(f"--{name}: {columns_of(len(runs), most)}" for name, most in COLUMNS.items()),
        pictures={name: picture for name, (picture, _) in pictures.items()},
        frames=max(count for _, count in pictures.values()),
        frame_ms=FRAME_MILLISECONDS,
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return page


def columns_of(count: int, most: int) -> int:
    """The pictures in a line, of `count`: at most `most` where possible, and none alone in the last line."""
    down, up = range(min(most, count), 1, -1), range(most + 1, count + 1)
    return next((columns for columns in (*down, *up) if count % columns != 1), 1)


def in_words(each: Sequence[float]) -> str:
    """What PSNRs to the full run, in dB, mean to the eye in nine of ten pictures."""
    steps = ((45.0, "indistinguishable"), (38.0, "hardly visible"), (30.0, "small changes"))
    tenth = sorted(each)[len(each) // 10]
    return next((words for least, words in steps if tenth >= least), "visible changes")


def _picture(path: Path) -> tuple[str, int]:
    """An image as it is, or the frames of a clip side by side; as an address that holds it, and how many frames."""
    frames = read_frames(path)
    if len(frames) == 1:
        return address("png", path.read_bytes()), 1
    width, height = frames[0].size
    joined = Image.new("RGB", (width * len(frames), height))
    for index, frame in enumerate(frames):
        joined.paste(frame, (width * index, 0))
    target = io.BytesIO()
    joined.save(target, format="webp", lossless=True)
    return address("webp", target.getvalue()), len(frames)
