"""The page of a comparison: one HTML file that needs nothing beside itself."""

from __future__ import annotations

import base64
from pathlib import Path

import jinja2

from omnireuse_lab.front import answers, nearest_to_half
from omnireuse_lab.record import Case, Comparison, Point
from omnireuse_lab.report.plot import SHAPES, plot_case
from omnireuse_lab.report.style import DARK, LIGHT, decibels, size

__all__ = ["address", "page_templates", "write_page"]


def write_page(comparison: Comparison, page: Path) -> Path:
    """Write the page of a comparison; pictures are read from its folder.

    Returns:
        The path of the page.
    """
    cases = [(case, plot_case(case), _worst(case, page.parent)) for case in comparison.cases]
    text = page_templates().get_template("methods.html.j2").render(comparison=comparison, cases=cases)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return page


def page_templates(*more: jinja2.BaseLoader) -> jinja2.Environment:
    """The templates of pages, and further ones beside them."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([*more, jinja2.PackageLoader("omnireuse_lab.report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(answers=answers, decibels=decibels, size=size)
    environment.globals.update(themes={"light": LIGHT, "dark": DARK}, shapes=SHAPES)
    return environment


def address(kind: str, image: bytes) -> str:
    """The address that holds an image of this kind, such as "png"."""
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def _worst(case: Case, folder: Path) -> list[tuple[Point, str, str]]:
    """Of each method at about half of the steps: its point, the prompt where it differs most, and that picture beside
    the full run's as an address. The worst comes first; those whose file does not lie in `folder` are left out."""
    near = [case.points[place] for place in nearest_to_half(case.points, case.steps)]
    kept = [point for point in near if point.worst and (folder / point.worst).exists()]
    return [
        (point, case.prompts[point.each.index(min(point.each))], address("png", (folder / point.worst).read_bytes()))
        for point in sorted(kept, key=lambda point: min(point.each))
    ]
