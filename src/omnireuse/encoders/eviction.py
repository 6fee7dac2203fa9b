"""The eviction policies: which unreferenced entry goes first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from omnireuse.base.registry import Registry

__all__ = ["LRU", "POLICIES", "S3FIFO", "EvictionPolicy"]


class EvictionPolicy(ABC):
    """Order entries for eviction. It does not decide whether an entry may go, only which one goes first.

    Keys are opaque; sizes are in the cache's unit (encoder embeddings). Deterministic: the same calls give the same
    victims. Only `victim` must be written: the other methods report what happens, and do nothing by default.
    """

    @abstractmethod
    def victim(self, idle: OrderedDict[Any, Any]) -> Hashable:
        """Return the entry to evict. It stays for now.

        Args:
            idle: the entries that may go, at least one, the one released first at the front. Not to be changed.
        """

    def stored(self, key: Hashable, size: int) -> None:  # noqa: B027 - not every policy listens
        """Add an entry, which is in use."""

    def used(self, key: Hashable) -> None:  # noqa: B027 - as `stored`
        """An entry got another reference."""

    def released(self, key: Hashable) -> None:  # noqa: B027 - as `stored`
        """An entry lost its last reference: it may go."""

    def removed(self, key: Hashable, *, evicted: bool) -> None:  # noqa: B027 - as `stored`
        """An entry is gone; `evicted` if for room, and so worth remembering."""


class LRU(EvictionPolicy):
    """Evict the entry that was released first. O(1)."""

    def victim(self, idle: OrderedDict[Any, Any]) -> Hashable:
        """Return the entry at the front."""
        key: Hashable = next(iter(idle))
        return key


_MAX_FREQUENCY = 3
_SMALL_SHARE = 0.1
_MIN_GHOSTS = 16  # an empty main queue would otherwise never learn what came back


class S3FIFO(EvictionPolicy):
    """Evict from a small queue what was used once; from the main queue what was not used since its last turn.

    Source: Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023, algorithm 1.
    """

    def __init__(self) -> None:
        self._small: OrderedDict[Hashable, None] = OrderedDict()
        self._main: OrderedDict[Hashable, None] = OrderedDict()
        self._ghost: OrderedDict[Hashable, None] = OrderedDict()
        self._size: dict[Hashable, int] = {}
        self._frequency: dict[Hashable, int] = {}
        self._small_size = self._total_size = 0

    def stored(self, key: Hashable, size: int) -> None:
        """Join the small queue, or the main one if it was evicted from the small one not long ago."""
        self._size[key], self._frequency[key] = size, 0
        self._total_size += size
        if key in self._ghost:
            del self._ghost[key]
            self._main[key] = None
        else:
            self._small[key] = None
            self._small_size += size

    def used(self, key: Hashable) -> None:
        """Count uses, up to three."""
        self._frequency[key] = min(self._frequency[key] + 1, _MAX_FREQUENCY)

    def victim(self, idle: OrderedDict[Any, Any]) -> Hashable:
        """Rotate the queues until an entry comes up that may go and was not used enough to stay."""
        small_first = self._small_size > _SMALL_SHARE * self._total_size
        queues = (self._from_small, self._from_main) if small_first else (self._from_main, self._from_small)
        for turn in queues:
            key = turn(idle)
            if key is not None:
                return key
        # All that may go were promoted on the way.
        return next(key for key in self._main if key in idle)

    def removed(self, key: Hashable, *, evicted: bool) -> None:
        """Leave the queue; remember entries evicted from the small one, as many as the main one holds."""
        size = self._size.pop(key)
        self._total_size -= size
        del self._frequency[key]
        if key in self._main:
            del self._main[key]
            return
        del self._small[key]
        self._small_size -= size
        if evicted:
            self._ghost[key] = None
            while len(self._ghost) > max(len(self._main), _MIN_GHOSTS):
                self._ghost.popitem(last=False)

    # An entry in use that comes up goes to the back: left at the front, every victim would have to pass it again.

    def _from_small(self, idle: OrderedDict[Any, Any]) -> Hashable | None:
        for _ in range(len(self._small)):
            key = next(iter(self._small))
            if self._frequency[key] > 1:
                del self._small[key]
                self._small_size -= self._size[key]
                self._main[key], self._frequency[key] = None, 0
            elif key in idle:
                return key
            else:
                self._small.move_to_end(key)
        return None

    def _from_main(self, idle: OrderedDict[Any, Any]) -> Hashable | None:
        for _ in range((_MAX_FREQUENCY + 1) * len(self._main)):
            key = next(iter(self._main))
            if key in idle:
                if self._frequency[key] == 0:
                    return key
                self._frequency[key] -= 1
            self._main.move_to_end(key)
        return None


POLICIES: Registry[type[EvictionPolicy]] = Registry("omnireuse.eviction_policies", {"lru": LRU, "s3-fifo": S3FIFO})
"""The package's own, and those of the entry points `omnireuse.eviction_policies`."""
