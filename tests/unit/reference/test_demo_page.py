from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from omnireuse.errors import ConfigError
from reference.demo.page import in_words, write_demo_page
from reference.demo.record import Demo
from reference.demo.runs import runs_of, strip
from tests.helpers.comparisons import PROMPTS, STEPS, changed, gallery, save_images
from tests.helpers.page_text import Page


def page_of(made: Demo, folder: Path) -> str:
    return write_demo_page(made, folder, folder / "page.html").read_text()


def test_pictures_are_called_alike_where_nine_of_ten_are() -> None:
    assert in_words([70.0, 60.0, 50.0, 44.0]) == "hardly visible"
    assert in_words([44.0] + [50.0] * 9) == "indistinguishable"
    assert in_words([20.0]) == "visible changes"


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


def test_every_decision_has_a_cell(rendered: str, made: Demo) -> None:
    cells = [attrs for tag, attrs in Page(rendered).tags if tag == "i" and attrs.get("class") in (None, "c")]
    per_prompt = STEPS + 2 * 2 * STEPS + 15 + 12
    assert len(cells) == per_prompt * len(PROMPTS)
    computed = sum("class" in attrs for attrs in cells)
    expected = sum(
        sum(not reused for _, line in strip(sample) for reused, _ in line)
        for run in runs_of(made)
        for sample in run.samples
    )
    assert computed == expected
    assert sum("title" in attrs for attrs in cells) == 2 * 2 * STEPS * len(PROMPTS), "those of a cache say why"
    assert any("cond, step 2: computed (policy), drift 0.01" in (attrs.get("title") or "") for attrs in cells)


def test_every_point_is_explained(rendered: str, made: Demo) -> None:
    page = Page(rendered)
    dots = [attrs["data-row"] for _, attrs in page.tags if "data-row" in attrs]
    rows = {attrs["id"] for tag, attrs in page.tags if tag == "tr" and "id" in attrs}
    assert len(dots) == len(made.samples)
    assert set(dots) == rows
    text = page.words
    assert "96 KiB" in text
    assert "omnireuse.enable(pipeline, 'omnireuse') Copy" in text
    assert "pipeline(prompt, num_inference_steps=12) Copy" in text


def test_a_step_that_a_branch_was_not_called_in_keeps_its_place(made: Demo) -> None:
    sample = made.samples[0][0]
    fewer = tuple(each for each in sample.decisions if not (each.branch == "uncond" and each.step in (0, 5)))
    (_, cond), (_, uncond) = strip(replace(sample, decisions=fewer))
    assert len(cond) == len(uncond) == STEPS
    assert [words for _, words in uncond if "not called" in words] == ["step 1: not called", "step 6: not called"]


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


def test_what_the_full_run_misses_is_not_held_against_the_others(rendered: str, made: Demo) -> None:
    text = Page(rendered).words
    assert text.count("not as asked: colour") == 2 * len(PROMPTS) + 1, "of the two runs of fewer steps, one twice"
    # Nobody shows the place of the third prompt, and only there the full run does not either.
    assert re.findall(r"not as asked: [^<]*place", rendered) == []
    assert re.findall(r"The full run itself misses ([^;]*);", text) == ["place"]
    found = made.samples[2]
    assert [sample.lost(full) for sample, full in zip(found, made.full, strict=True)] == [("colour",)] * 3


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


def test_a_baseline_has_the_colour_of_its_cache(made: Demo) -> None:
    found = {run.name: run.tone for run in runs_of(made)}
    assert found["omnireuse"] == found["fewer steps (12)"] == "highlight"
    assert found["TeaCache 0.2"] == found["fewer steps (15)"] == "first"
    assert found["full"] == "full"
