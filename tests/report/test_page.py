from __future__ import annotations

import html.parser
import re
from dataclasses import replace
from pathlib import Path

import pytest

from omnireuse.errors import ConfigError
from omnireuse.report.page import render_page
from omnireuse.report.results import Comparison
from omnireuse.report.style import LIGHT, strip, tones

from .make import PROMPTS, STEPS, comparison, save_images


class Page(html.parser.HTMLParser):
    """The start tags of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def made() -> Comparison:
    return comparison()


@pytest.fixture
def rendered(made: Comparison, tmp_path: Path) -> str:
    save_images(made, tmp_path)
    return render_page(made, tmp_path)


def test_the_page_needs_nothing_beside_itself(rendered: str, made: Comparison) -> None:
    page = Page(rendered)
    sources = [value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href", "srcset")]
    images = [value for value in sources if value and value.startswith("data:image/png;base64,")]
    assert len(images) == len(made.variants) * len(PROMPTS)
    # What is left points inside the page: markers of the drawing.
    assert all(value and value.startswith(("data:image/png;base64,", "#")) for value in sources)
    assert not re.search(r"url\((?!#)|@import|<script", rendered)


def test_a_prompt_is_text_and_not_markup(rendered: str) -> None:
    assert "&lt;b&gt;pink&lt;/b&gt;" in rendered
    assert "<b>pink" not in rendered


def test_every_decision_has_a_cell(rendered: str, made: Comparison) -> None:
    cells = [attrs for tag, attrs in Page(rendered).tags if tag == "i" and "title" in attrs]
    per_prompt = STEPS + 2 * 2 * STEPS + 15 + 12
    assert len(cells) == per_prompt * len(PROMPTS)
    computed = sum("class" in attrs for attrs in cells)
    expected = sum(
        sum(not reused for _, line in strip(variant, number) for reused, _ in line)
        for variant in made.variants
        for number in range(len(PROMPTS))
    )
    assert computed == expected
    assert any("cond, step 2: computed (policy), drift 0.01" in (attrs["title"] or "") for attrs in cells)


def test_the_drawing_takes_its_colours_from_the_theme(rendered: str) -> None:
    drawing = rendered[rendered.index("<svg") : rendered.index("</svg>")]
    assert "var(--highlight)" in drawing
    assert not [colour for colour in LIGHT.values() if colour in drawing]


def test_the_figures_are_those_of_the_comparison(rendered: str, made: Comparison) -> None:
    text = " ".join(" ".join(Page(rendered).text).split())
    best = made.highlighted
    assert f"{made.speedup(best):.2f}" in text
    assert "45.0 dB" in text
    assert "+10.0 dB" in text
    assert "−1.4 dB" in text, "a cache that loses to fewer steps must say so"
    assert "not as asked: colour" in text
    assert "interrupted" not in text


def test_an_interrupted_run_says_so(made: Comparison, tmp_path: Path) -> None:
    save_images(made, tmp_path)
    assert "interrupted" in render_page(replace(made, complete=False), tmp_path)


def test_a_comparison_without_floors_or_checker_still_has_a_page(made: Comparison, tmp_path: Path) -> None:
    save_images(made, tmp_path)
    bare = tuple(
        replace(variant, samples=tuple(replace(sample, attributes=None) for sample in variant.samples))
        for variant in made.variants
        if variant.role != "floor"
    )
    text = render_page(replace(made, variants=bare, guidance=1.0), tmp_path)
    assert "attributes right" not in text
    assert "no guidance" in text


def test_a_missing_image_is_named(made: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0-0\.png: No such file"):
        render_page(made, tmp_path)


def test_colours_are_distinct_so_that_a_theme_can_find_them() -> None:
    assert len(set(LIGHT.values())) == len(LIGHT)


def test_a_floor_has_the_colour_of_its_cache(made: Comparison) -> None:
    found = tones(made)
    assert found["omnireuse"] == found["12 steps"] == "highlight"
    assert found["TeaCache 0.2"] == found["15 steps"] == "first"
    assert found["full"] == "full"
