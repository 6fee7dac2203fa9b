from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from lab.tests.comparisons import PROMPTS, changed, gallery, save_images
from lab.tests.page_text import Page
from omnireuse.errors import ConfigError
from reference.demo.page import write_demo_page
from reference.demo.record import Demo


def page_of(made: Demo, folder: Path) -> str:
    return write_demo_page(made, folder, folder / "page.html").read_text("utf-8")


@pytest.fixture
def made() -> Demo:
    return gallery()


@pytest.fixture
def rendered(made: Demo, tmp_path: Path) -> str:
    save_images(made, tmp_path)
    return page_of(made, tmp_path)


def test_the_page_needs_nothing_beside_itself(rendered: str, made: Demo) -> None:
    page = Page(rendered)
    sources = [value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href", "srcset")]
    images = [value for value in sources if value and value.startswith("data:image/png;base64,")]
    assert len(images) == (1 + len(made.samples)) * len(PROMPTS)
    assert len(sources) == len(images)
    assert not re.search(r"url\((?!.data:)|@import|<script [^>]|<link", rendered)
    assert "default-src 'none'" in rendered, "and the browser is told to hold it to that"


def test_a_prompt_is_text_and_not_markup(rendered: str) -> None:
    assert "&lt;b&gt;pink&lt;/b&gt;" in rendered
    assert "<b>pink" not in rendered


def test_the_figures_are_those_of_the_comparison(rendered: str, made: Demo) -> None:
    text = Page(rendered).words
    speedup = made.case.points[0].speedup
    assert speedup is not None
    assert f"{speedup.median:.2f}" in text
    assert "45.0 dB PSNR to the full run" in text
    assert "hardly visible" in text, "of two pictures one is below 45 dB"
    assert "+10.0 dB" in text
    assert "−1.4" in text, "a cache that loses to fewer steps must say so"
    assert "interrupted" not in text


def test_an_interrupted_run_says_so(made: Demo, tmp_path: Path) -> None:
    save_images(made, tmp_path)
    assert "interrupted" in page_of(replace(made, comparison=replace(made.comparison, complete=False)), tmp_path)


def test_a_demo_without_baselines_still_has_a_page(made: Demo, tmp_path: Path) -> None:
    save_images(made, tmp_path)
    comparison = changed(made.comparison, points=made.case.points[:2], guidance=1.0)
    text = page_of(replace(made, comparison=comparison, samples=made.samples[:2]), tmp_path)
    assert "PSNR compared with" not in text
    assert "no guidance" in text


def test_a_missing_image_is_named(made: Demo, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0-0\.png: No such file"):
        page_of(made, tmp_path)
