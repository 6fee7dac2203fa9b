"""Outputs of disk and Redis on their way: threads of the scheduler's process read them while their requests wait."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from omnireuse.stores.tier import CircuitBreaker, TieredStore
from omnireuse_engines.vllm.interface import EncoderKey
from omnireuse_engines.vllm.outputs import EncoderOutput, EncoderOutputStore
from omnireuse_engines.vllm.plans import Item

__all__ = ["Fetch", "Reads"]

logger = logging.getLogger("omnireuse")

_READERS = 4


@dataclass
class Fetch:
    """An output on its way from an outer tier, and the requests that wait for it."""

    future: Future[EncoderOutput | None]
    started: float
    is_late: bool = False
    is_rewritten: bool = False
    waiting: set[str] = field(default_factory=set)


class Reads:
    """The reads under way. What is missing, broken or late is None, and tiers that are late too often are left alone.

    Args:
        outer: tiers to read; None for none.
        namespace: names the outputs there, beside the digest of the weights.
        seconds: that a request waits.
        counts: gets the events.
    """

    def __init__(
        self,
        outer: TieredStore | None,
        namespace: str,
        seconds: float,
        counts: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        self.outer, self._namespace, self._seconds, self._counts, self._clock = outer, namespace, seconds, counts, clock
        self._fetches: dict[EncoderKey, Fetch] = {}
        self._breaker = CircuitBreaker(clock=clock)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="omnireuse-fetch")

    def __len__(self) -> int:
        return len(self._fetches)

    def begin(self, item: Item, request_id: str) -> Fetch | None:
        """Read an output for a request, unless that is under way; None if nothing is read."""
        fetch = self._fetches.get(item.key)
        if fetch is None:
            if self.outer is None or not self._breaker.allows():
                return None
            fetch = self._fetches[item.key] = Fetch(self._readers.submit(self._read, item), self._clock())
            self._counts["fetches"] += 1
        fetch.waiting.add(request_id)
        return fetch

    def is_on_its_way(self, fetch: Fetch) -> bool:
        """Whether its requests wait on."""
        if fetch.future.done():
            if not fetch.is_late:
                self._breaker.report(ok=True)
            return False
        if self._clock() - fetch.started < self._seconds:
            return True
        fetch.is_late, fetch.future = True, Future()
        fetch.future.set_result(None)
        self._counts["fetches_late"] += 1
        if self._breaker.report(ok=False):
            logger.warning("disk and Redis are not asked for a while: they take over %g s", self._seconds)
        return False

    def found(self, item: Item) -> EncoderOutput | None:
        """An output that was read."""
        fetch = self._fetches.get(item.key)
        return fetch.future.result() if fetch is not None and fetch.future.done() else None

    def forget(self, item: Item) -> None:
        """Let go of an output."""
        self._fetches.pop(item.key, None)

    def clear(self) -> None:
        """Let go of all outputs."""
        self._fetches.clear()

    def leave(self, item: Item, request_id: str) -> None:
        """A request waits no more; a read that nobody waits for is forgotten."""
        if (fetch := self._fetches.get(item.key)) is not None:
            fetch.waiting.discard(request_id)
            if not fetch.waiting:
                del self._fetches[item.key]

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        if self.outer is not None:
            self.outer.close()

    def _read(self, item: Item) -> EncoderOutput | None:
        # A store of its own: stores serve one thread, the tiers below them all.
        try:
            return EncoderOutputStore(outer=self.outer, weights=self._namespace).load(item.key, item.num_embeds)
        except Exception:
            self._counts["fetches_failed"] += 1
            logger.exception("encoder output %s could not be read, and is encoded", item.key)
            return None
