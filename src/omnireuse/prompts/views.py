"""Views of one pipeline as it is now, and what its calls write themselves."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from omnireuse.fingerprints.plain import UnkeyableError
from omnireuse.fingerprints.survey import Survey, checked
from omnireuse.prompts.code import Code
from omnireuse.prompts.look import Look
from omnireuse.prompts.view import Scope, View

__all__ = ["Views", "Writes"]


class Views:
    """Views of one pipeline. What is as it was is not looked at again.

    Args:
        pipeline: held weakly.
        code: of its `encode_prompt`.
    """

    def __init__(self, pipeline: object, code: Code) -> None:
        self.code, self._pipeline, self._lock = code, weakref.ref(pipeline), threading.RLock()
        self._look: Look | None = None
        self._surveys: dict[str, Survey] = {}

    def close(self) -> None:
        """Let go of all that was seen."""
        self._look, self._surveys = None, {}

    def look(self) -> Look:
        """What the pipeline holds now under the names that its code mentions.

        Raises:
            UnkeyableError: something can change unseen.
        """
        old = self._look
        if old is None or not old.holds():
            with self._lock:
                if self._look is None or self._look is old or not self._look.holds():  # no other thread has looked
                    self._look = Look(self._pipeline(), self.code, self._look)
                old = self._look
        return old

    def survey(self, path: str, value: Any) -> Survey:
        """All that a module, or what else counts whole, holds now; its weights are digested at once, before a call may
        use or change them.

        Raises:
            UnkeyableError: something can change unseen.
        """
        old = self._surveys.get(path)
        if old is not None and old.value is not value:
            old = None
        if old is None or not old.holds():
            with checked():
                old = Survey(value, path, self._pipeline(), old)
                old.sums()
            with self._lock:
                alive = {each: survey for each, survey in self._surveys.items() if survey.value is not None}
                self._surveys = alive | {path: old}
        return old

    def view(self, scope: Scope) -> View:
        """What counts for a call now.

        Raises:
            UnkeyableError: something can change unseen.
        """
        look = self.look()
        found = look.whole | {path: module for path in scope.ran if (module := look.module(path)) is not None}
        return View(look, {path: self.survey(path, value) for path, value in found.items()})


class Writes:
    """What calls write themselves: what the last one left, and how often somebody else has written it.

    A value that a call writes is no input of it, as long as calls alone write it: then it is what the last one left.
    Each call notes what is there before it ends, so what differs while no call goes on was written by others.

    Args:
        views: of the pipeline.
    """

    def __init__(self, views: Views) -> None:
        self._views = views
        self._lock = threading.Lock()
        self._left: dict[str, Any] = {}
        self._others: dict[str, int] = {}
        self._ran: set[str] = set()
        self._active = self._begun = 0

    def of_others(self, view: View, own: Iterable[str]) -> tuple[int, ...]:
        """How often others have written each of these. While a call goes on, its writes are no one else's."""
        if not self._left:
            return ()
        with self._lock:
            if not {*self._ran} <= {*view.ran} or any(view.content(each) != was for each, was in self._left.items()):
                self._compare()  # by a view of now: a call may have ended since that one
            return tuple([self._others.get(each, 0) for each in own])

    def begin(self) -> tuple[bool, int]:
        """A call begins. Returns a ticket for `is_alone`."""
        with self._lock:
            self._compare()
            ticket = self._active == 0, self._begun
            self._active, self._begun = self._active + 1, self._begun + 1
            return ticket

    def is_alone(self, ticket: tuple[bool, int]) -> bool:
        """Whether no other call has gone on since this one began."""
        with self._lock:
            return ticket == (True, self._begun - 1)

    def end(self, own: Iterable[str] = (), ran: Iterable[str] = ()) -> None:
        """A call is over; calls have left what is there now.

        Args:
            own: what this one both reads and writes.
            ran: see `Scope`.
        """
        with self._lock:
            self._left |= {each: self._left.get(each) for each in own}
            self._ran |= {*ran} if self._left else set()
            self._left |= self._now()
            self._active -= 1

    @contextmanager
    def of_a_call(self) -> Iterator[None]:
        """What is written meanwhile is written by a call."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def _compare(self) -> None:
        if not self._active:
            now = self._now()
            for each in [each for each, content in now.items() if content != self._left[each]]:
                self._left[each], self._others[each] = now[each], self._others.get(each, 0) + 1

    def _now(self) -> dict[str, Any]:
        if not self._left:
            return {}
        try:
            view = self._views.view(Scope(frozenset(self._ran)))
        except UnkeyableError:  # the call itself says so
            return {}
        return {each: view.content(each) for each in self._left}
