"""Work of tuning's own, such as preparing, recording, planning and storing: no picture fails because it does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import torch

from omnireuse.base.once import Once
from omnireuse.base.validation import in_words
from omnireuse.errors import NotTunableError, OmniReuseError, StateError
from omnireuse.loop.events import FellBack, Hook

__all__ = ["OwnWork", "UnexpectedError", "WaitingError", "state_after"]

logger = logging.getLogger("omnireuse")

T = TypeVar("T")


class WaitingError(NotTunableError):
    """A run that is measured later, or gets its plan later. The text is what it waits for."""


class UnexpectedError(NotTunableError):
    """An error of tuning's own work that nobody expects."""


class OwnWork:
    """Makes omnireuse's own errors of all that tuning meets, and says and counts those that nobody expects.

    Attributes:
        emit: takes them as fallbacks to the untuned default, from hosts that count those.
    """

    def __init__(self) -> None:
        self.emit: Hook | None = None
        self._said = Once()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Do some of the work. The traceback of an unexpected error is logged once for each text.

        Raises:
            OmniReuseError: as it was raised within; a StateError if there was not enough memory, which other pictures
                may have; and an UnexpectedError for one that nobody expects, since the next picture would meet it.
        """
        try:
            yield
        except OmniReuseError:
            raise
        except (MemoryError, torch.cuda.OutOfMemoryError) as error:
            raise StateError(in_words(error)) from error
        except Exception as error:
            text = in_words(error)
            if self._said.is_new(text):
                logger.error("tuning has met an error of its own, and pictures go on without it", exc_info=error)
            if self.emit is not None:
                self.emit(FellBack("the untuned default"))
            raise UnexpectedError(text) from error

    def of(self, make: Callable[..., T], *args: object) -> T:
        """What `make` returns; it is work of tuning's own."""
        with self():
            return make(*args)

    def error_of(self, work: Callable[[], object]) -> OmniReuseError | None:
        """The error of some of the work; None if there is none. It has no traceback: in a variable of the caller, that
        would keep the values of all its frames until the next collection of garbage."""
        try:
            self.of(work)
        except OmniReuseError as error:
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)
        return None


def state_after(why: object) -> Literal["off", "waiting", "failed"]:
    """The state of tuning for a run that is not tuned: "failed" after an error that nobody expects."""
    if isinstance(why, WaitingError):
        return "waiting"
    return "failed" if isinstance(why, UnexpectedError) else "off"
