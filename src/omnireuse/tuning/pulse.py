"""What happens while trial runs go on: a bar moves, and whoever stops the picture stops them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from omnireuse.arguments.tune import TURN_OFF
from omnireuse.base.validation import in_words
from omnireuse.errors import StateError
from omnireuse.loop.agreement import Agreement
from omnireuse.tuning.callback import Callback

__all__ = ["PictureBar", "Pulse", "StoppedError"]


class PictureBar:
    """The bar that the pipeline has made for the run of a picture, once it is known to be measured.

    Attributes:
        made: bars of the call so far; the latest one is the run's.
    """

    def __init__(self) -> None:
        self.made: list[Any] = []
        self._bar: Any = None

    def begin(self, total: int) -> None:
        """Show so many steps: of the picture, and of the trial runs that are expected after it."""
        self._bar = self.made[-1] if self.made and _can_go_on(self.made[-1]) else None
        if self._bar is not None:
            own = str(self._bar.desc or "").removesuffix(": ")
            words = f"omnireuse: measuring ({TURN_OFF})"
            self._bar.total = max(total, self._bar.total or 0)
            self._bar.close = lambda: None  # the pipeline's loop closes it before the trial runs
            self._bar.set_description(f"{own}: {words}" if own else words)

    def computed(self) -> None:
        """Go on by one step."""
        if self._bar is not None and self._bar.n < self._bar.total:
            self._bar.update()

    def close(self) -> None:
        """End the bar where it stands."""
        bar, self._bar = self._bar, None
        if bar is not None:
            del bar.close
            bar.total = bar.n
            bar.close()


def _can_go_on(bar: object) -> bool:
    """Whether it is a bar of tqdm that is shown."""
    return getattr(bar, "disable", True) is False and hasattr(bar, "n") and callable(getattr(bar, "refresh", None))


logger = logging.getLogger("omnireuse")


class StoppedError(StateError):
    """Trial runs were stopped by the user."""


class Pulse:
    """The pulse of the trial runs after one picture.

    Args:
        pipeline: whose `_interrupt` stops them, as it stops its own loop.
        callback: of the call, called at each step; None for none.
        bar: goes on with each computed step.
        agreement: of ranks, which stop together.
        is_stopped: tells whether the handle's `interrupt` was called.
    """

    def __init__(
        self,
        pipeline: object,
        callback: Callback | None,
        bar: PictureBar,
        agreement: Agreement,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._pipeline, self._callback, self.bar = pipeline, callback, bar
        self._agreement, self._is_stopped = agreement, is_stopped

    def step(self) -> None:
        """Go on with one step of a trial run, or stop.

        Raises:
            StoppedError: somebody has stopped them. The picture is made, and the call returns it.
            BaseException: the callback has raised an interrupt, such as KeyboardInterrupt.
        """
        why: str | None = None
        try:
            if self._callback is not None:
                self._callback.beat()
        except Exception as error:
            why = f"the callback has raised {in_words(error)}"
        if self._is_stopped():
            why = "the handle's interrupt was called"
        elif getattr(self._pipeline, "_interrupt", False) is True:
            why = "the pipeline was interrupted"
        if (why := self._agreement.of_any(why)) is not None:
            raise StoppedError(why)
