"""Single flight: concurrent requests for one absent key run its loader once and share the result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["SingleFlight"]

V = TypeVar("V")


class _AbandonedError(Exception):
    """The leader was interrupted: one of the waiters leads next."""


class SingleFlight(Generic[V]):
    """Run at most one loader per key at a time, across threads.

    The first caller (the leader) runs its loader; the others wait and get the same value, or the leader's own error.
    Nothing is remembered afterwards: an error is never served to a later caller. If the leader is interrupted
    (KeyboardInterrupt), one of its waiters leads next. A loader that asks for its own key runs at once, because waiting
    would never end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, tuple[int, Future[V]]] = {}

    def run(self, key: Hashable, load: Callable[[], V]) -> tuple[V, bool]:
        """Return the value of one key and whether this call loaded it."""
        this: tuple[int, Future[V]] = (threading.get_ident(), Future())
        with self._lock:
            leader, future = flight = self._flights.setdefault(key, this)
        if flight is not this and leader == this[0]:
            return load(), True
        if flight is not this:
            try:
                return future.result(), False
            except _AbandonedError:
                return self.run(key, load)
        try:
            value = load()
        except BaseException as error:
            self._land(key)
            future.set_exception(error if isinstance(error, Exception) else _AbandonedError())
            raise
        self._land(key)
        future.set_result(value)
        return value, True

    def _land(self, key: Hashable) -> None:
        # Before the result is known: whoever comes after that finds the store filled, or starts afresh.
        with self._lock:
            del self._flights[key]
