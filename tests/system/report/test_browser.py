"""The page in a real browser: what can be dragged, pointed at, typed and touched."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.helpers.comparisons import STEPS
from tests.helpers.sweep import sweep

from .window import Window, place

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844}


def at(page: Page) -> float:
    return float(page.evaluate("document.querySelector('.slider input').value"))


def explained(page: Page, plot: int = 0) -> str:
    """What the card beside a plot shows, in one line."""
    return " ".join(page.evaluate(f"document.querySelectorAll('.chosen-row')[{plot}].innerText").split())


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


@pytest.mark.parametrize(("kind", "sliders"), [("report", 4), ("clips", 3)])
def test_every_picture_and_control_has_a_name(
    window: Window, kind: str, sliders: int, request: pytest.FixtureRequest
) -> None:
    page = window.open(request.getfixturevalue(kind))
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    nameless = [
        node["role"]["value"]
        for node in tree
        if not node["ignored"]
        and node["role"]["value"] in ("button", "slider", "image", "img", "link")
        and not node["name"]["value"]
    ]
    assert nameless == []
    assert sum(node.get("role", {}).get("value") == "slider" for node in tree) == sliders
    names = {node["name"]["value"] for node in tree if node.get("role", {}).get("value") == "button"}
    assert "omnireuse, 12 steps · 44.0 dB; hold it against full" in names
    assert "fewer steps (12), 12 steps · 34.0 dB, not as asked: colour; hold it against full" in names


def test_the_keyboard_alone_reaches_every_control(window: Window, report: Path) -> None:
    page = window.open(report)
    wanted = page.evaluate(
        "[...document.querySelectorAll('button, input, summary, figure[role=button], .runs, .dot[tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility()).length"
    )
    seen = []
    for _ in range(3 * wanted):
        page.keyboard.press("Tab")
        first = page.evaluate(
            "(e => e.dataset.tabbed ? null : (e.dataset.tabbed = 1, e.tagName + '.' + e.getAttribute('class')))"
            "(document.activeElement)"
        )
        if first is None:
            break
        seen.append(first)
    assert sum(name.startswith("FIGURE") for name in seen) == 14
    assert sum(name.startswith("INPUT") for name in seen) == 4
    assert sum(name.startswith("DIV.runs") for name in seen) == 3
    assert sum(name.startswith("g.dot") for name in seen) == 1
    assert len(seen) >= wanted


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


def test_the_first_screen_holds_the_best_run_and_fewer_steps_against_the_full_run(window: Window, report: Path) -> None:
    page = window.open(report, folded=True)
    assert page.evaluate("[...document.querySelectorAll('.front figure')].map(e => e.dataset.name)") == [
        "full",
        "omnireuse",
        "fewer steps (12)",
    ]
    right = "document.querySelector('.front [data-side=right]')"
    best = page.evaluate(f"{right}.src")
    assert best.startswith("data:image/png;base64,")
    assert best == page.evaluate(f"document.querySelector('{ALL_RUNS} figure.best img').src")
    page.click(".front figure:nth-of-type(3)")
    assert page.evaluate(f"{right}.alt").startswith("fewer steps (12): ")
    assert page.evaluate("[...document.querySelectorAll('details')].every(e => !e.open)")


def test_pressing_a_picture_holds_it_against_the_full_run(window: Window, report: Path) -> None:
    page = window.open(report)
    right = f"document.querySelector('{ALL_RUNS} .slider [data-side=right]')"
    assert page.evaluate(f"{right}.src === document.querySelector('{ALL_RUNS} figure.best img').src")
    page.click(f"{ALL_RUNS} >> figure:nth-of-type(3) >> nth=0")
    assert page.evaluate(f"{right}.src === document.querySelector('{ALL_RUNS} figure:nth-of-type(3) img').src")
    assert page.evaluate(f"{right}.alt").startswith("TeaCache 0.2: ")
    assert page.evaluate(f"document.querySelector('{ALL_RUNS} .slider .right').textContent") == "TeaCache 0.2"
    page.evaluate(f"document.querySelector('{ALL_RUNS} figure:nth-of-type(4)').focus()")
    page.keyboard.press("Enter")
    assert page.evaluate(f"document.querySelector('{ALL_RUNS} .slider input').ariaLabel") == (
        "full on the left, fewer steps (15) on the right"
    )


def test_pointing_at_a_dot_explains_it_and_pressing_keeps_it(window: Window, report: Path) -> None:
    page = window.open(report)
    assert explained(page).startswith("omnireuse"), "what the report is about is explained first"
    teacache, other = '[data-row="gallery-1"] path', '[data-row="gallery-3"] path'
    page.mouse.move(*place(page, teacache))
    text = explained(page)
    assert text.startswith("TeaCache 0.2 threshold = 0.2")
    for words in ("computed steps 15.0", "over fewer steps, dB −1.4", "kept between steps 96 KiB", "speed-up 1.8"):
        assert words in text
    assert "omnireuse.enable(pipeline, 'TeaCache 0.2')" in text
    page.click(teacache)
    page.mouse.move(*place(page, other))
    assert explained(page) == text, "pressed, it stays while the pointer goes to the button beside it"
    page.keyboard.press("Escape")
    page.mouse.move(*place(page, other))
    assert explained(page).startswith("fewer steps")


def test_the_call_is_copied(window: Window, report: Path) -> None:
    page = window.open(report)
    page.click("header .copy")
    expect(page.locator("header .copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "omnireuse.enable(pipeline, 'omnireuse')"


def test_pointing_at_a_step_tells_what_was_decided_and_why(window: Window, report: Path) -> None:
    page = window.open(report)
    page.mouse.move(*place(page, ".strip", 4.5 / STEPS))
    read = page.evaluate("document.querySelector('.readout').innerText")
    assert "TeaCache 0.2 cond, step 5: computed (policy), drift 0.04, forecast error 0.12" in read
    assert "omnireuse cond, step 5: reused (policy), drift 0.04" in read
    page.evaluate("document.querySelector('.runs').focus()")
    page.keyboard.press("ArrowRight")
    assert "step 6: " in page.evaluate("document.querySelector('.readout').innerText")
    page.keyboard.press("End")
    assert f"step {STEPS}: computed (last)" in page.evaluate("document.querySelector('.readout').innerText")


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
