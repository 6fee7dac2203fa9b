"""Single flight: concurrent requests for one absent key run its loader once and share the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

__all__ = ["SingleFlight"]

V = TypeVar("V")


class _Flight(Generic[V]):
    """One running loader: the thread and task that run it, and its result to be."""

    __slots__ = ("future", "task", "thread")

    def __init__(self, task: object) -> None:
        self.future: Future[V] = Future()
        self.thread, self.task = threading.get_ident(), task


class _AbandonedError(Exception):
    """The leader was interrupted: one of the waiters leads next."""


class SingleFlight(Generic[V]):
    """Run at most one loader per key at a time, across threads and asyncio tasks.

    The first caller (the leader) runs its loader; the others wait and get the same value, or the leader's own error.
    Nothing is remembered afterwards: an error is never served to a later caller. If the leader is interrupted
    (KeyboardInterrupt, a cancelled task), one of its waiters leads next. A loader that asks for its own key, and a
    synchronous call on a thread whose own task is loading, run at once, because waiting would never end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight[V]] = {}

    def run_many(self, keys: Sequence[Hashable], load: Callable[[list[Any]], Mapping[Any, V]]) -> dict[Any, V]:
        """Return the values of several keys: one call of ``load`` for those that nobody is loading.

        A caller finishes its own keys before it waits, so two callers with overlapping keys never wait for each other.

        Raises:
            Exception: what ``load`` raised, here and in every waiter; or what the loader of a key waited for raised.
        """
        values: dict[Any, V] = {}
        missing = list(dict.fromkeys(keys))
        while missing:
            joined = {key: self._join(key, None) for key in missing}
            led = {key: flight for key, (flight, leads) in joined.items() if leads}
            own = [key for key in missing if key in led or joined[key][0].thread == threading.get_ident()]
            if own:
                try:
                    loaded = load(own)
                    values |= {key: loaded[key] for key in own}
                except BaseException as error:
                    for key, flight in led.items():
                        self._finish(key, flight, error=error)
                    raise
                for key, flight in led.items():
                    self._finish(key, flight, value=values[key])
            missing = [key for key in missing if key not in values]
            for key in tuple(missing):
                try:
                    values[key] = joined[key][0].future.result()
                    missing.remove(key)
                except _AbandonedError:
                    continue  # another round: this caller may lead it now
        return values

    async def run_async(self, key: Hashable, load: Callable[[], Awaitable[V]]) -> tuple[V, bool]:
        """Return the value of one key and whether this call led, without blocking the event loop."""
        task = asyncio.current_task()
        while True:
            flight, leads = self._join(key, task)
            if not leads:
                if flight.task is task:
                    return await load(), True
                try:
                    # Shielded: a cancelled waiter must not cancel the flight that others wait for.
                    return await asyncio.shield(asyncio.wrap_future(flight.future)), False
                except _AbandonedError:
                    continue
            try:
                value = await load()
            except BaseException as error:
                self._finish(key, flight, error=error)
                raise
            self._finish(key, flight, value=value)
            return value, True

    def _join(self, key: Hashable, task: object) -> tuple[_Flight[V], bool]:
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False
            flight = self._flights[key] = _Flight(task)
            return flight, True

    def _finish(
        self, key: Hashable, flight: _Flight[V], *, value: V | None = None, error: BaseException | None = None
    ) -> None:
        # The key leaves first: a caller that comes once the result is known finds the store filled, or starts afresh.
        with self._lock:
            del self._flights[key]
        if error is None:
            flight.future.set_result(value)  # type: ignore[arg-type]  # value is V whenever there is no error
        else:
            flight.future.set_exception(error if isinstance(error, Exception) else _AbandonedError())
