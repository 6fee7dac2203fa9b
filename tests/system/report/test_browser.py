"""The page in a real browser: what can be dragged, pointed at, typed and touched."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.comparisons import STEPS, comparison

from .browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine; apt-get install chromium"),
]

PHONE = {"width": 390, "height": 844}


def at(browser: Browser) -> float:
    return float(browser.ask("document.querySelector('.slider input').value"))


def explained(browser: Browser, plot: int = 0) -> str:
    """What the card beside a plot shows, in one line."""
    return " ".join(browser.ask(f"document.querySelectorAll('.chosen-row')[{plot}].innerText").split())


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 420, 768, 1280, 1400])
def test_it_opens_without_network_error_or_sideways_scrolling(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert {request.partition(":")[0] for request in browser.requests} == {"file", "data"}
    assert sum(request.startswith("file:") for request in browser.requests) == 1
    assert browser.errors == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    paper = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, paper[4:-1].split(","))) < 60) is dark


@pytest.mark.parametrize(("kind", "sliders"), [("page", 3), ("clips", 2)])
def test_every_picture_and_control_has_a_name(
    browser: Browser, kind: str, sliders: int, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(kind))
    tree = browser.send("Accessibility.getFullAXTree")["nodes"]
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


def test_the_keyboard_alone_reaches_every_control(browser: Browser, page: Path) -> None:
    browser.open(page)
    wanted = browser.ask(
        "[...document.querySelectorAll('button, input, summary, figure[role=button], .runs, .dot[tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility()).length"
    )
    seen = []
    for _ in range(3 * wanted):
        browser.press("Tab")
        first = browser.ask(
            "(e => e.dataset.tabbed ? null : (e.dataset.tabbed = 1, e.tagName + '.' + e.getAttribute('class')))"
            "(document.activeElement)"
        )
        if first is None:
            break
        seen.append(first)
    assert sum(name.startswith("FIGURE") for name in seen) == 12
    assert sum(name.startswith("INPUT") for name in seen) == 3
    assert sum(name.startswith("DIV.runs") for name in seen) == 3
    assert sum(name.startswith("g.dot") for name in seen) == 2
    assert len(seen) >= wanted


def test_dragging_the_slider_uncovers_the_other_image(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.mouse("Moved", browser.place(".slider", 0.5))
    browser.mouse("Pressed", browser.place(".slider", 0.5))
    browser.mouse("Moved", browser.place(".slider", 0.8))
    browser.mouse("Released", browser.place(".slider", 0.8))
    assert at(browser) == pytest.approx(80, abs=1)
    assert browser.ask("getComputedStyle(document.querySelector('.slider .over')).clipPath") == "inset(0px 0px 0px 80%)"
    browser.mouse("Moved", browser.place(".slider", 0.2))
    assert at(browser) == pytest.approx(80, abs=1), "let go of, it stays"


def test_the_slider_answers_to_keys(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.ask("document.querySelector('.slider input').focus()")
    browser.press("ArrowRight")
    assert at(browser) == 51
    browser.press("Home")
    assert at(browser) == 0
    assert browser.ask("document.querySelector('.slider').style.getPropertyValue('--at')") == "0%"


def test_the_slider_answers_to_a_finger(browser: Browser, page: Path) -> None:
    browser.open(page, **PHONE)
    browser.touch(*(browser.place(".slider", share) for share in (0.5, 0.4, 0.3)))
    assert at(browser) == pytest.approx(30, abs=1)


def test_pressing_a_picture_holds_it_against_the_full_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    right = "document.querySelector('.slider [data-side=right]')"
    assert browser.ask(f"{right}.src === document.querySelector('figure.best img').src")
    browser.click("figure:nth-of-type(2)")
    assert browser.ask(f"{right}.src === document.querySelector('figure:nth-of-type(2) img').src")
    assert browser.ask(f"{right}.alt").startswith("TeaCache 0.2: ")
    assert browser.ask("document.querySelector('.slider .right').textContent") == "TeaCache 0.2"
    browser.ask("document.querySelector('figure:nth-of-type(4)').focus()")
    browser.press("Enter")
    assert browser.ask("document.querySelector('.slider input').ariaLabel") == (
        "full on the left, fewer steps (15) on the right"
    )


def test_pointing_at_a_dot_explains_it_and_pressing_keeps_it(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert explained(browser).startswith("omnireuse"), "what the report is about is explained first"
    teacache, other = '[data-row="demo-0"] path', '[data-row="demo-3"] path'
    browser.mouse("Moved", browser.place(teacache))
    text = explained(browser)
    assert text.startswith("TeaCache 0.2 threshold = 0.2")
    for words in ("computed steps 15.0", "over fewer steps, dB −1.4", "kept between steps 96 KiB", "speed-up 1.8"):
        assert words in text
    assert "omnireuse.enable(pipeline, 'TeaCache 0.2')" in text
    browser.click(teacache)
    browser.mouse("Moved", browser.place(other))
    assert explained(browser) == text, "pressed, it stays while the pointer goes to the button beside it"
    browser.press("Escape")
    browser.mouse("Moved", browser.place(other))
    assert explained(browser).startswith("fewer steps")


def test_the_arrow_keys_go_from_dot_to_dot(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.ask("document.querySelector('[data-row^=case0]').focus()")
    seen = []
    for key in ("Home", "ArrowRight", "ArrowRight", "End"):
        browser.press(key)
        seen.append(explained(browser, 1).split(" PSNR")[0])
    assert seen[0].startswith("fewer steps")
    assert seen[-1].startswith("other peer"), "the dot furthest to the right"
    assert len(set(seen)) == len(seen)
    assert browser.ask("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_a_tap_explains_a_dot(browser: Browser, page: Path) -> None:
    browser.open(page, **PHONE)
    browser.touch(browser.place('[data-row="case0-5"] path'))
    assert explained(browser, 1).startswith("other peer")


def test_the_call_is_copied(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.click("header .copy")
    browser.until("document.querySelector('header .copy').textContent === 'Copied'")
    assert browser.ask("navigator.clipboard.readText()") == "omnireuse.enable(pipeline, 'omnireuse')"


def test_without_a_clipboard_the_call_is_selected(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.ask("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    browser.ask("document.execCommand = () => false")
    browser.click(".chosen-row .copy")
    browser.until("document.querySelector('.chosen-row .copy').textContent === 'Selected'")
    assert browser.ask("getSelection().toString()").strip() == "omnireuse.enable(pipeline, 'omnireuse')"


def test_pointing_at_a_step_tells_what_was_decided_and_why(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.mouse("Moved", browser.place(".strip", 4.5 / STEPS))
    read = browser.ask("document.querySelector('.readout').innerText")
    assert "TeaCache 0.2 cond, step 5: computed (policy), drift 0.04, forecast error 0.12" in read
    assert "omnireuse cond, step 5: reused (policy), drift 0.04" in read
    browser.ask("document.querySelector('.runs').focus()")
    browser.press("ArrowRight")
    assert "step 6: " in browser.ask("document.querySelector('.readout').innerText")
    browser.press("End")
    assert f"step {STEPS}: computed (last)" in browser.ask("document.querySelector('.readout').innerText")


def test_strips_and_curves_share_one_axis(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.mouse("Moved", browser.place(".strip", 9.5 / STEPS))
    boxes = browser.ask(
        "['.strip', '.curve svg'].map(s => document.querySelector(s).getBoundingClientRect()).map(b => [b.x, b.width])"
    )
    assert boxes[0] == boxes[1]
    cursor = browser.ask(
        "(() => { const b = document.querySelector('.cursor').getBoundingClientRect(); return b.x; })()"
    )
    assert cursor == pytest.approx(boxes[0][0] + 9 / STEPS * boxes[0][1], abs=0.6)


def shown(browser: Browser) -> list[int]:
    """The frame that each clip really shows, told from its brightness on the screen."""
    boxes = browser.ask(
        "(() => { document.querySelector('article').scrollIntoView();"
        " return [...document.querySelector('article').querySelectorAll('.clip:not(.diff)')]"
        ".map(e => e.getBoundingClientRect())"
        ".map(b => [b.x + b.width / 2, b.y + b.height / 2]); })()"
    )
    screen = np.asarray(Image.open(io.BytesIO(browser.visible())).convert("L"))
    return [round(float(screen[int(y), int(x)]) / 255 * 5) - 1 for x, y in boxes]


def test_clips_play_in_step_and_stop_at_any_frame(browser: Browser, clips: Path) -> None:
    browser.open(clips)
    assert browser.ask("document.querySelector('.player button').textContent") == "Pause"
    first = browser.ask("document.querySelector('.player output').textContent")
    browser.until(f"document.querySelector('.player output').textContent !== {first!r}")
    frames = shown(browser)
    assert len(frames) == 2 + len(comparison().variants)
    assert len(set(frames)) == 1, "every clip shows the same frame"
    browser.ask("document.querySelector('.player input').focus()")
    browser.press("End")
    assert browser.ask("document.querySelector('.player button').textContent") == "Play"
    assert set(shown(browser)) == {3}
    browser.press("ArrowLeft")
    assert set(shown(browser)) == {2}


def test_clips_stand_still_for_whoever_wants_little_motion(browser: Browser, clips: Path) -> None:
    browser.open(clips, still=True)
    assert browser.ask("document.querySelector('.player button').textContent") == "Play"
    assert set(shown(browser)) == {0}
    browser.click(".player button")
    assert browser.ask("document.querySelector('.player button').textContent") == "Pause"
