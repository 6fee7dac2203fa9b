"""The page in a real browser: what can be dragged, pointed at, typed and touched."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.helpers.sweep import sweep

from .window import Window, place

pytestmark = pytest.mark.browser


def at(page: Page) -> float:
    return float(page.evaluate("document.querySelector('.slider input').value"))


@pytest.mark.parametrize("kind", ["report", "methods"])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", sweep([390, 420, 768, 1280, 1400], quick=[390, 1280]))
def test_it_opens_without_network_error_or_sideways_scrolling(
    window: Window, kind: str, width: int, dark: bool, request: pytest.FixtureRequest
) -> None:
    file: Path = request.getfixturevalue(kind)
    page = window.open(file, width=width, dark=dark)
    assert window.requests == [file.as_uri()]
    assert window.errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, paper[4:-1].split(","))) < 60) is dark


def test_dragging_the_slider_uncovers_the_other_image(window: Window, report: Path) -> None:
    page = window.open(report)
    page.mouse.move(*place(page, ".slider", 0.5))
    page.mouse.down()
    page.mouse.move(*place(page, ".slider", 0.8))
    page.mouse.up()
    assert at(page) == pytest.approx(80, abs=1)
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.slider .over')).clipPath") == "inset(0px 0px 0px 80%)"
    )
    page.mouse.move(*place(page, ".slider", 0.2))
    assert at(page) == pytest.approx(80, abs=1), "let go of, it stays"


ALL_RUNS = "article:not(.front)"
"""The article that shows every run of the first prompt; the first screen's article comes before it."""


def shown(page: Page) -> list[int]:
    """The frame that each clip really shows, told from its brightness on the screen."""
    boxes = page.evaluate(
        f"(() => {{ const e = document.querySelector('{ALL_RUNS}'); e.scrollIntoView();"
        " return [...e.querySelectorAll('.clip:not(.diff)')]"
        ".map(e => e.getBoundingClientRect())"
        ".map(b => [b.x + b.width / 2, b.y + b.height / 2]); })()"
    )
    screen = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"))
    return [round(float(screen[int(y), int(x)]) / 255 * 5) - 1 for x, y in boxes]


def test_clips_play_in_step_and_stop_at_any_frame(window: Window, clips: Path) -> None:
    page = window.open(clips)
    assert page.evaluate("document.querySelector('.player button').textContent") == "Pause"
    first = page.evaluate("document.querySelector('.player output').textContent")
    expect(page.locator(".player output").first).not_to_have_text(first)
    frames = shown(page)
    assert len(frames) == 2 + 5
    assert len(set(frames)) == 1, "every clip shows the same frame"
    page.evaluate("document.querySelector('.player input').focus()")
    page.keyboard.press("End")
    assert page.evaluate("document.querySelector('.player button').textContent") == "Play"
    assert set(shown(page)) == {3}
    page.keyboard.press("ArrowLeft")
    assert set(shown(page)) == {2}
