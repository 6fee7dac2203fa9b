"""How the page lies in a window: the first screen, nothing cut off or alone, and charts that explain themselves."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from reference.demo.page import write_demo_page
from tests.helpers.comparisons import gallery, images

from .window import Window, place

pytestmark = pytest.mark.browser


BOTTOMS = """(selector => [...document.querySelectorAll(selector)].slice(0, %d)
    .map(e => e.getBoundingClientRect().bottom + scrollY))"""
LINES = """[...document.querySelectorAll('article:not(.front) .row')].map(row => {
    const tops = [...row.querySelectorAll('figure')].map(e => e.offsetTop);
    return [...new Set(tops)].map(top => tops.filter(other => other === top).length);
})"""


@pytest.mark.parametrize("kind", ["report", "clips"])
@pytest.mark.parametrize("width", [420, 1400])
def test_the_first_screen_shows_pictures(window: Window, kind: str, width: int, request: pytest.FixtureRequest) -> None:
    page = window.open(request.getfixturevalue(kind), width=width, still=True, folded=True)
    (bottom,) = page.evaluate(f"{BOTTOMS % 1}('.front .stage')")
    assert 0 < bottom <= 900
    if width == 1400:
        assert max(page.evaluate(f"{BOTTOMS % 3}('.front figure')")) <= 900, "the differences, too"


@pytest.mark.parametrize("width", [420, 1400])
def test_no_column_is_cut_off(window: Window, report: Path, width: int) -> None:
    page = window.open(report, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(
        "[...document.querySelectorAll('.scroll')]"
        ".map(e => [e.clientWidth, e.scrollWidth, e.querySelectorAll('td').length])"
    )
    assert len(boxes) == 1
    for inner, needed, cells in boxes:
        assert needed <= inner
        assert cells > 20
    ends = page.evaluate(
        "[...document.querySelectorAll('td')].map(e => e.getBoundingClientRect().right)"
        ".concat([...document.querySelectorAll('.strip')].map(e => e.getBoundingClientRect().right))"
    )
    assert max(ends) <= width


def test_a_difference_is_four_times_as_bright_as_it_is(window: Window, tmp_path: Path) -> None:
    made = gallery()
    (tmp_path / "images").mkdir()
    shades = (100, 103, 90, 100, 180)
    for shade, names in zip(shades, images(made), strict=True):
        for name in names:
            Image.new("RGB", (8, 8), (shade, 0, 20)).save(tmp_path / name)
    page = window.open(write_demo_page(made, tmp_path, tmp_path / "page.html"), width=1400)
    assert page.evaluate("document.querySelectorAll('.diff[role=img]').length") == 4 * len(made.case.prompts) + 2
    for number, shade in enumerate(shades[1:], start=2):
        x, y = place(page, f"article:not(.front) figure:nth-of-type({number}) .diff")
        pixel = Image.open(io.BytesIO(page.screenshot())).convert("RGB").getpixel((int(x), int(y)))
        assert pixel == (min(255, 4 * abs(shade - 100)), 0, 0)
    words = page.evaluate("[...document.querySelectorAll('article:not(.front) .diff[role=img]')].map(e => e.ariaLabel)")
    assert words[0] == "omnireuse: difference to the full run, times 4"
    assert (
        page.evaluate("document.querySelector('figure.reference .diff').innerText") == "difference to the full run, ×4"
    )


@pytest.mark.parametrize("kind", ["report", "clips"])
def test_every_chart_has_a_legend_and_says_how_to_read_it(
    window: Window, kind: str, request: pytest.FixtureRequest
) -> None:
    page = window.open(request.getfixturevalue(kind), width=1400)
    charts = page.evaluate(
        "[['.explained', '.plot .read', '.legend li'], ['.runs', ':scope > .read', '.key']]"
        ".map(([chart, reading, legend]) => [...document.querySelectorAll(chart)]"
        ".map(e => [e.querySelectorAll(reading).length, e.querySelector(reading)?.innerText,"
        " [...e.querySelectorAll(legend)].map(i => i.innerText.trim())]))"
    )
    plots, runs = charts
    assert len(plots) == 1
    assert len(runs) == 3
    for count, sentence, legend in (*plots, *runs):
        assert count == 1
        assert sentence.strip().endswith(".")
        assert len(legend) >= 2
        assert all(legend)
    assert set(plots[0][2][:4]) == {"TeaCache 0.2", "omnireuse", "fewer steps (15)", "fewer steps (12)"}
    assert "right edge: the full run, 28 steps" in plots[0][2]
    assert "further left computes less, higher is closer to the full run" in plots[0][1]
    pictures = page.evaluate("[...document.querySelectorAll('details > .read')].map(e => e.innerText)")
    assert all("Lower row: its difference to the full run, 4 times as bright" in words for words in pictures)
    assert len(pictures) == 2
