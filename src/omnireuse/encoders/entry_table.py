"""The entries of a shared encoder cache, their sums, and eviction."""

from __future__ import annotations

import math
from collections import OrderedDict, deque

from omnireuse.encoders.eviction import POLICIES, EvictionPolicy
from omnireuse.encoders.interface import (
    CacheEvent,
    EncoderKey,
    ItemTooLargeError,
    SharedEncoderCacheConfig,
)

__all__ = ["EncoderEntry", "EntryTable"]

_MAX_PENDING_EVENTS = 65_536
_COUNTERS = (
    "hits", "misses", "joined", "reserved", "committed", "aborted", "evicted", "no_room", "events_dropped",
)  # fmt: skip


class EncoderEntry:
    """One encoder output, planned or ready.

    Attributes:
        waiting: while the output is planned, its holders (request id, position) in order; the first one encodes it.
            None once it is ready.
        num_references: by requests. Without any, the entry is idle: it may be evicted.
    """

    __slots__ = ("key", "num_bytes", "num_embeds", "num_references", "waiting")

    def __init__(self, key: EncoderKey, num_embeds: int, num_bytes: int, encoder: tuple[str, int]) -> None:
        self.key, self.num_embeds, self.num_bytes = key, num_embeds, num_bytes
        self.waiting: list[tuple[str, int]] | None = [encoder]
        self.num_references = 1


class EntryTable:
    """Entries by key with running sums over all and over the idle ones. Only idle entries are evicted."""

    def __init__(self, config: SharedEncoderCacheConfig) -> None:
        self.config, self._max_embeds = config, config.max_embeds
        self._max_bytes = math.inf if config.max_bytes is None else config.max_bytes
        self._events: deque[CacheEvent] = deque()
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self._reset()

    def _reset(self) -> None:
        policy = self._policy = POLICIES[self.config.policy]()
        # Every access would call these; None where the policy does not listen.
        self._used = None if type(policy).used is EvictionPolicy.used else policy.used
        self._released = None if type(policy).released is EvictionPolicy.released else policy.released
        self._entries: dict[EncoderKey, EncoderEntry] = {}
        self._idle: OrderedDict[EncoderKey, EncoderEntry] = OrderedDict()
        self._num_embeds = self._num_bytes = self._idle_embeds = self._idle_bytes = 0

    def is_ready(self, key: EncoderKey) -> bool:
        """Tell whether the output is in the cache. Takes no reference: it may leave any time."""
        entry = self._entries.get(key)
        return entry is not None and entry.waiting is None

    def get_num_embeds(self, key: EncoderKey) -> int | None:
        """Return the size of a planned or ready output; None if it is neither."""
        entry = self._entries.get(key)
        return None if entry is None else entry.num_embeds

    def can_fit(self, num_embeds: int, num_bytes: int = 0) -> bool:
        """Tell whether that much would fit if everything unreferenced left. Changes nothing."""
        return (
            num_embeds + self._num_embeds - self._idle_embeds <= self._max_embeds
            and num_bytes + self._num_bytes - self._idle_bytes <= self._max_bytes
        )

    def make_room(self, num_embeds: int, num_bytes: int = 0) -> bool:
        """Evict until that much fits; False, with nothing evicted, if it cannot now.

        Raises:
            ItemTooLargeError: it is larger than the cache.
        """
        if num_embeds > self._max_embeds or num_bytes > self._max_bytes:
            raise ItemTooLargeError(
                f"shared encoder cache(max_embeds={self._max_embeds}, max_bytes={self.config.max_bytes}): must hold at "
                f"least one item, got one of {num_embeds} embeddings and {num_bytes} bytes; waiting would never help: "
                "raise the budget or make items smaller"
            )
        if self._is_over(num_embeds, num_bytes):
            if not self.can_fit(num_embeds, num_bytes):
                return False
            self._fit_budgets(num_embeds, num_bytes)
        return True

    def drain_events(self) -> list[CacheEvent]:
        """Return the events since the last call, oldest first; at most 65,536, then the oldest are dropped."""
        events = list(self._events)
        self._events.clear()
        return events

    def stats(self) -> dict[str, int]:
        """Return counters and sizes."""
        return {
            **self._counters,
            "entries": len(self._entries), "embeds": self._num_embeds, "bytes": self._num_bytes,
            "idle_entries": len(self._idle), "idle_embeds": self._idle_embeds,
        }  # fmt: skip

    def assert_invariants(self) -> None:
        """Assert that the sums are right and that idle entries respect the budgets."""
        entries = self._entries.values()
        idle = {key: entry for key, entry in self._entries.items() if not entry.num_references}
        assert idle == dict(self._idle), "idle is wrong"
        assert all(entry.waiting is None for entry in idle.values()), "a planned entry is idle"
        assert self._num_embeds == sum(e.num_embeds for e in entries), "num_embeds is not the sum"
        assert self._num_bytes == sum(e.num_bytes for e in entries), "num_bytes is not the sum"
        assert self._idle_embeds == sum(e.num_embeds for e in idle.values()), "idle_embeds is not the sum"
        assert self._idle_bytes == sum(e.num_bytes for e in idle.values()), "idle_bytes is not the sum"
        assert not (idle and self._is_over()), "over budget with idle entries"

    def _emit(self, event: CacheEvent) -> None:
        if len(self._events) >= _MAX_PENDING_EVENTS:
            self._events.popleft()
            self._counters["events_dropped"] += 1
        self._events.append(event)

    def _add(self, entry: EncoderEntry) -> None:
        self._entries[entry.key] = entry
        self._num_embeds += entry.num_embeds
        self._num_bytes += entry.num_bytes
        self._policy.stored(entry.key, entry.num_embeds)

    def _remove(self, entry: EncoderEntry, why: str) -> None:
        """Remove an entry without references."""
        key = entry.key
        del self._entries[key]
        if key in self._idle:
            self._leave_idle(entry)
        self._num_embeds -= entry.num_embeds
        self._num_bytes -= entry.num_bytes
        self._policy.removed(key, evicted=why == "evicted")
        self._counters[why] += 1
        self._emit(CacheEvent("removed", key, entry.num_embeds, why))

    def _enter_idle(self, entry: EncoderEntry) -> None:
        """Take note that the last reference to a ready output is gone."""
        self._idle[entry.key] = entry
        self._idle_embeds += entry.num_embeds
        self._idle_bytes += entry.num_bytes
        if self._released is not None:
            self._released(entry.key)
        if self._num_embeds > self._max_embeds or self._num_bytes > self._max_bytes:  # a commit reported more
            self._fit_budgets()

    def _leave_idle(self, entry: EncoderEntry) -> None:
        del self._idle[entry.key]
        self._idle_embeds -= entry.num_embeds
        self._idle_bytes -= entry.num_bytes

    def _fit_budgets(self, num_embeds: int = 0, num_bytes: int = 0) -> None:
        """Evict idle entries until that much more fits or none is left."""
        while self._idle and self._is_over(num_embeds, num_bytes):
            self._remove(self._entries[self._policy.victim(self._idle)], "evicted")  # type: ignore[index]  # a key given

    def _is_over(self, num_embeds: int = 0, num_bytes: int = 0) -> bool:
        return self._num_embeds + num_embeds > self._max_embeds or self._num_bytes + num_bytes > self._max_bytes
