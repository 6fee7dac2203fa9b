"""Pages in Chromium, driven by Playwright."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Window:
    """One page at a time in a browser.

    Attributes:
        requests: every address that the last page asked for, but for `data:`.
        errors: uncaught exceptions, refused resources and whatever else that page complained about.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._context: BrowserContext | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []

    def open(
        self,
        file: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        still: bool = False,
        folded: bool = False,
    ) -> Page:
        """Load a file, in a window of that size, for somebody who prefers dark colours or little motion.

        Args:
            folded: leave the parts of the page closed, as a reader first sees it; else all are opened.
        """
        self.close()
        phone = width < 600
        self._context = self._browser.new_context(
            viewport={"width": width, "height": height},
            device_scale_factor=2 if phone else 1,
            is_mobile=phone,
            has_touch=phone,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if still else "no-preference",
            permissions=["clipboard-read", "clipboard-write"],
        )
        self._context.set_default_timeout(10_000)
        page = self._context.new_page()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.goto(file.resolve().as_uri())
        if not folded:
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        return page

    def close(self) -> None:
        """Close the page and forget what it asked for and complained about."""
        if self._context is not None:
            self._context.close()
        self._context = None
        self.requests, self.errors = [], []


def place(page: Page, selector: str, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
    """Where in the window the first such element lies, scrolled into view; `x` and `y` are shares of its size."""
    left, top, width, height = page.evaluate(
        f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
        " e.scrollIntoView({block: 'center'});"
        " const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
    )
    return left + x * width, top + y * height
