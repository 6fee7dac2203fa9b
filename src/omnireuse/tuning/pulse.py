"""What happens while trial runs go on: a bar moves, and whoever stops the picture stops them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from omnireuse.base.validation import in_words
from omnireuse.errors import StateError
from omnireuse.loop.agreement import Agreement

__all__ = ["Pulse", "StoppedError"]

logger = logging.getLogger("omnireuse")


class StoppedError(StateError):
    """Trial runs were stopped by the user."""


class Pulse:
    """The pulse of the trial runs after one picture.

    Args:
        pipeline: whose `_interrupt` stops them, as it stops its own loop.
        beat: called at each step, and may raise.
        is_stopped: tells whether the handle's `interrupt` was called.
        agreement: of ranks, which stop together.
        computed: told of each computed step.
    """

    def __init__(
        self,
        pipeline: object,
        *,
        beat: Callable[[], object],
        is_stopped: Callable[[], bool],
        agreement: Agreement,
        computed: Callable[[], object],
    ) -> None:
        self._pipeline, self._beat, self._is_stopped = pipeline, beat, is_stopped
        self._agreement, self.computed = agreement, computed

    def step(self) -> None:
        """Go on with one step of a trial run, or stop.

        Raises:
            StoppedError: somebody has stopped them. The picture is made, and the call returns it.
            BaseException: the callback has raised an interrupt, such as KeyboardInterrupt.
        """
        why: str | None = None
        try:
            self._beat()
        except Exception as error:
            why = f"the callback has raised {in_words(error)}"
        if self._is_stopped():
            why = "the handle's interrupt was called"
        elif getattr(self._pipeline, "_interrupt", False) is True:
            why = "the pipeline was interrupted"
        if (why := self._agreement.of_any(why)) is not None:
            raise StoppedError(why)
