"""A real browser for the tests of the page: Chromium, driven over a pipe by its own DevTools protocol.

Source: https://chromedevtools.github.io/devtools-protocol/; with ``--remote-debugging-pipe`` the browser reads commands
from file descriptor 3 and writes answers and events to 4, as JSON that a zero byte ends.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
KEYS = {
    name: {"key": name, "code": name, "windowsVirtualKeyCode": code}
    for name, code in {
        "ArrowLeft": 37,
        "ArrowRight": 39,
        "Home": 36,
        "End": 35,
        "Enter": 13,
        "Escape": 27,
        "Tab": 9,
    }.items()
}


def _pipe() -> tuple[int, int]:
    """A pipe beyond the descriptors 3 and 4, which its ends are to be copied to in the browser."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved  # type: ignore[return-value]


class Browser:
    """One tab. A context manager: leaving it ends the browser.

    Attributes:
        requests: every address that the page asked for.
        errors: uncaught exceptions, refused resources and whatever else the page complained about.
    """

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._commands = _pipe()
        self._answers, answers = _pipe()
        switches = (
            "--headless", "--no-sandbox", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu",
            "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={self._profile.name}", "about:blank",
        )  # fmt: skip
        quiet = os.open(os.devnull, os.O_WRONLY)
        pipes = [(os.POSIX_SPAWN_DUP2, source, target) for source, target in ((commands, 3), (answers, 4), (quiet, 2))]
        self._process = os.posix_spawn(CHROMIUM, [CHROMIUM, *switches], os.environ, file_actions=pipes, setpgroup=0)
        for end in (commands, answers, quiet):
            os.close(end)
        self._rest = b""
        self._number = 0
        self._held = False
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        pages = self.send("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)
        os.close(self._answers)
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        self._profile.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result; the events that arrive before it are taken in."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._answers], [], [], 60.0)[0], "the browser has been silent for a minute"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser ended"
            self._rest += more
        line, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(line)
        about = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif message.get("method") == "Log.entryAdded":
            self.errors.append(about["entry"]["text"])
        return message

    def open(
        self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False, still: bool = False
    ) -> None:
        """Load a file, in a window of that size, for somebody who prefers dark colours or little motion."""
        self.requests.clear()
        self.errors.clear()
        phone = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if still else "",
        }
        self.send(
            "Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in features.items()]
        )
        self.send("Page.navigate", url=page.resolve().as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait for a JavaScript condition, at most ten seconds."""
        assert self.ask(
            "new Promise(done => { const end = Date.now() + 1e4;"
            f" const look = () => ({condition}) ? done(true) : Date.now() > end ? done(false) : setTimeout(look, 10);"
            " look(); })"
        ), f"never came true: {condition}"

    def place(self, selector: str, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
        """Where in the window the element lies that the selector finds, scrolled into view; x, y as shares of it."""
        box = self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )
        return box[0] + x * box[2], box[1] + y * box[3]

    def mouse(self, kind: str, at: tuple[float, float]) -> None:
        """`kind` is one of Moved, Pressed and Released; the left button stays down in between."""
        self._held = kind == "Pressed" or (self._held and kind == "Moved")
        button = {"button": "left" if kind != "Moved" or self._held else "none", "clickCount": int(kind != "Moved")}
        self.send("Input.dispatchMouseEvent", type=f"mouse{kind}", x=at[0], y=at[1], buttons=int(self._held), **button)

    def click(self, selector: str) -> None:
        """Press and release the left button in the middle of an element."""
        at = self.place(selector)
        for kind in ("Moved", "Pressed", "Released"):
            self.mouse(kind, at)

    def touch(self, *path: tuple[float, float]) -> None:
        """Put a finger down, move it along `path` and lift it."""
        for number, (x, y) in enumerate(path):
            self.send(
                "Input.dispatchTouchEvent", type="touchMove" if number else "touchStart", touchPoints=[{"x": x, "y": y}]
            )
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **KEYS[key])

    def visible(self) -> bytes:
        """What the window shows, as a PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot")["data"])

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        image = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(image))
