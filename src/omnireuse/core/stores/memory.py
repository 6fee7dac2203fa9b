"""A thread-safe mapping in memory with a byte budget, an eviction policy and a clock that is a parameter."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import cachetools

from omnireuse.errors import ConfigError, UnknownNameError

__all__ = ["EVICTION_POLICIES", "MemoryStore", "StoreStats"]

V = TypeVar("V")
D = TypeVar("D")

EVICTION_POLICIES: Mapping[str, type[cachetools.Cache[Any, Any]]] = {
    "lru": cachetools.LRUCache,
    "lfu": cachetools.LFUCache,
    "fifo": cachetools.FIFOCache,
}


@dataclass(kw_only=True)
class StoreStats:
    """Counters of one store since its creation; ``entries`` and ``num_bytes`` are as of now.

    ``refused`` counts values larger than the whole budget, ``expired`` the entries dropped for their age.
    """

    entries: int = 0
    num_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    refused: int = 0
    expired: int = 0


@dataclass(slots=True)
class _Slot(Generic[V]):
    value: V
    num_bytes: int
    expires_at: float


class MemoryStore(Mapping[Hashable, V], Generic[V]):
    """A bounded mapping. A value that does not fit evicts others; one that can never fit is refused alone.

    Reading through the mapping interface (``store[key]``, ``get``, ``in``, iteration) counts nothing and moves
    nothing; :meth:`lookup` is the read that counts and that the eviction policy sees.

    Args:
        max_bytes: budget in bytes, at least 1; None for no limit.
        max_entries: budget in entries, at least 1; None for no limit.
        eviction: one of ``lru``, ``lfu``, ``fifo``.
        ttl_s: seconds an entry lives, above 0; None for ever.
        clock: monotonic seconds.
        on_drop: called with ``(key, value)`` of every entry that leaves for any reason, under the store's lock.

    Raises:
        ConfigError: a budget or ``ttl_s`` out of range.
        UnknownNameError: an unknown ``eviction``.
    """

    def __init__(
        self,
        *,
        max_bytes: int | None = None,
        max_entries: int | None = None,
        eviction: str = "lru",
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_drop: Callable[[Hashable, V], None] | None = None,
    ) -> None:
        if eviction not in EVICTION_POLICIES:
            raise UnknownNameError("eviction policy", eviction, EVICTION_POLICIES)
        if ttl_s is not None and not 0 < ttl_s < math.inf:
            raise ConfigError(f"MemoryStore(ttl_s={ttl_s!r}): field must be finite and > 0, got {ttl_s!r}; pass None")
        self.max_bytes = check_budget("MemoryStore", "max_bytes", max_bytes)
        self.max_entries = check_budget("MemoryStore", "max_entries", max_entries)
        self.eviction, self.ttl_s, self._clock, self._on_drop = eviction, ttl_s, clock, on_drop
        self._lock = threading.RLock()
        limit = math.inf if max_bytes is None else max_bytes
        self._slots: cachetools.Cache[Hashable, _Slot[V]] = EVICTION_POLICIES[eviction](
            limit, lambda slot: slot.num_bytes
        )
        self._stats = StoreStats()

    def lookup(self, key: Hashable, default: D) -> V | D:
        """Return the value of ``key``, or ``default``; counted, and seen by the eviction policy."""
        with self._lock:
            try:
                slot = self._slots[key]
            except KeyError:
                self._stats.misses += 1
                return default
            if self.ttl_s is not None and self._clock() >= slot.expires_at:
                self._drop(key)
                self._stats.expired += 1
                self._stats.misses += 1
                return default
            self._stats.hits += 1
            return slot.value

    def put(self, key: Hashable, value: V, num_bytes: int) -> bool:
        """Store ``value``; False, and nothing else touched, if ``num_bytes`` exceeds the whole budget.

        An entry of the same key is out of date and is dropped even then.
        """
        if num_bytes < 0:
            raise ConfigError(f"put(num_bytes={num_bytes}): field must be at least 0, got {num_bytes}")
        expires_at = math.inf if self.ttl_s is None else self._clock() + self.ttl_s
        with self._lock:
            self.discard(key)
            if self.max_bytes is not None and num_bytes > self.max_bytes:
                self._stats.refused += 1
                return False
            while self._slots and self._is_over(num_bytes):
                self._evict()
            self._slots[key] = _Slot(value, num_bytes, expires_at)
            return True

    def resize(self, max_entries: int) -> None:
        """Change the budget of entries and evict what exceeds it."""
        with self._lock:
            self.max_entries = check_budget("MemoryStore", "max_entries", max_entries)
            while len(self._slots) > max_entries:
                self._evict()

    def discard(self, key: Hashable) -> bool:
        """Drop ``key``; False if it was absent."""
        with self._lock:
            if key not in self._slots:
                return False
            self._drop(key)
            return True

    def discard_if(self, predicate: Callable[[Hashable, V], bool]) -> int:
        """Drop every entry for which ``predicate(key, value)``; returns how many."""
        with self._lock:
            dropped = [key for key, value in self.snapshot() if predicate(key, value)]
            for key in dropped:
                self._drop(key)
            return len(dropped)

    def clear(self) -> None:
        """Drop every entry; counters stay."""
        self.discard_if(lambda _key, _value: True)

    def snapshot(self) -> list[tuple[Hashable, V]]:
        """Return all entries at one instant, uncounted."""
        with self._lock:
            return [(key, self._peek(key)) for key in self._slots]

    @property
    def num_bytes(self) -> int:
        """Bytes held now, by the sizes given to :meth:`put`."""
        return int(self._slots.currsize)

    def stats(self) -> StoreStats:
        """Return a consistent copy of the counters."""
        with self._lock:
            return replace(self._stats, entries=len(self._slots), num_bytes=self.num_bytes)

    def __getitem__(self, key: Hashable) -> V:
        with self._lock:
            return self._peek(key)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def __iter__(self) -> Iterator[Hashable]:
        with self._lock:
            return iter(list(self._slots))

    def __len__(self) -> int:
        return len(self._slots)

    def _is_over(self, incoming: int) -> bool:
        too_many = self.max_entries is not None and len(self._slots) >= self.max_entries
        return too_many or (self.max_bytes is not None and self.num_bytes + incoming > self.max_bytes)

    def _evict(self) -> None:
        key, slot = self._slots.popitem()
        self._stats.evictions += 1
        if self._on_drop is not None:
            self._on_drop(key, slot.value)

    def _peek(self, key: Hashable) -> V:
        # Cache.__getitem__ of the base class reads without telling the subclass's eviction order.
        return cachetools.Cache.__getitem__(self._slots, key).value

    def _drop(self, key: Hashable) -> None:
        value = self._peek(key)
        del self._slots[key]
        if self._on_drop is not None:
            self._on_drop(key, value)


def check_budget(owner: str, name: str, value: int | None) -> int | None:
    """Return ``value`` if it is None or an integer of at least 1.

    Raises:
        ConfigError: it is not.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ConfigError(
        f"{owner}({name}={value!r}): field must be an integer of at least 1, got {value!r}; "
        f"pass None for no limit, or turn the cache off to store nothing"
    )
