"""A thread-safe mapping in memory: least recently used first out, within budgets of bytes and entries."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Annotated, Generic, TypeVar

from omnireuse.base.validation import Range, check_value, is_whole

__all__ = ["MemoryStore", "check_budget"]

_NO_LIMIT = "pass None for no limit, or turn the cache off to store nothing"
Budget = Annotated[int, Range("be an integer of at least 1", partial(is_whole, least=1), _NO_LIMIT)]

V = TypeVar("V")
D = TypeVar("D")


class MemoryStore(Generic[V]):
    """A bounded mapping. A value that does not fit evicts others; one that can never fit is refused alone.

    `lookup` counts, and makes the entry the last to be evicted; `peek`, `in` and `snapshot` do neither.

    Args:
        max_bytes: budget in bytes, ≥ 1; None for no limit.
        max_entries: budget in entries, ≥ 1; None for no limit.

    Attributes:
        counts: "hits", "misses", "evictions", and "refused" for values larger than the whole budget.
        num_bytes: bytes held now, by the sizes given to `put`.
    """

    def __init__(self, *, max_bytes: int | None = None, max_entries: int | None = None) -> None:
        self.max_bytes = check_budget("MemoryStore", "max_bytes", max_bytes)
        self.max_entries = check_budget("MemoryStore", "max_entries", max_entries)
        self.counts: Counter[str] = Counter()
        self.num_bytes = 0
        self._lock = threading.RLock()
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def lookup(self, key: Hashable, default: D) -> V | D:
        """Return the value of `key`, or `default`."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self.counts["misses"] += 1
                return default
            self._entries.move_to_end(key)
            self.counts["hits"] += 1
            return found[0]

    def peek(self, key: Hashable) -> V | None:
        """Return the value of `key`, or None."""
        found = self._entries.get(key)
        return None if found is None else found[0]

    def put(self, key: Hashable, value: V, num_bytes: int) -> bool:
        """Store `value` in place of an earlier one; False, with neither kept, if it exceeds the whole budget."""
        with self._lock:
            self.discard(key)
            if self.max_bytes is not None and num_bytes > self.max_bytes:
                self.counts["refused"] += 1
                return False
            self._entries[key] = value, num_bytes
            self.num_bytes += num_bytes
            self._evict()
            return True

    def resize(self, max_entries: int) -> None:
        """Change the budget of entries and evict the excess."""
        with self._lock:
            self.max_entries = check_budget("MemoryStore", "max_entries", max_entries)
            self._evict()

    def discard(self, key: Hashable) -> None:
        """Drop `key`, if it is there."""
        with self._lock:
            self.num_bytes -= self._entries.pop(key, (None, 0))[1]

    def discard_if(self, predicate: Callable[[Hashable], bool]) -> int:
        """Drop every entry whose key satisfies `predicate`; returns how many."""
        with self._lock:
            dropped = [key for key in self._entries if predicate(key)]
            for key in dropped:
                self.discard(key)
            return len(dropped)

    def clear(self) -> None:
        """Drop every entry; counters stay."""
        self.discard_if(lambda _key: True)

    def snapshot(self) -> dict[Hashable, V]:
        """Return all entries at one instant, the next to be evicted first."""
        with self._lock:
            return {key: value for key, (value, _) in self._entries.items()}

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _evict(self) -> None:
        while (self.max_entries is not None and len(self._entries) > self.max_entries) or (
            self.max_bytes is not None and self.num_bytes > self.max_bytes
        ):
            _, (_, num_bytes) = self._entries.popitem(last=False)
            self.num_bytes -= num_bytes
            self.counts["evictions"] += 1


def check_budget(owner: str, name: str, value: int | None) -> int | None:
    """Return `value` if it is None or an integer ≥ 1."""
    check_value(owner, name, value, Budget | None)
    return value
