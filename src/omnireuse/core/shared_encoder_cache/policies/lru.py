"""Least recently released first, as vLLM's own manager evicts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from omnireuse.core.shared_encoder_cache.policies.base import EvictionPolicy

__all__ = ["LRU"]


class LRU(EvictionPolicy):
    """Evict the entry whose last reference went first. O(1)."""

    def __init__(self) -> None:
        self._idle: OrderedDict[Hashable, None] = OrderedDict()

    def stored(self, key: Hashable, size: int, cost: float) -> None:
        """Entries in use are not in the order."""

    def used(self, key: Hashable) -> None:
        """Leave the order."""
        self._idle.pop(key, None)

    def idle(self, key: Hashable) -> None:
        """Become the last in the order."""
        self._idle[key] = None

    def victim(self, may_go: Callable[[Hashable], bool]) -> Hashable:
        """Return the entry idle for longest."""
        return next(key for key in self._idle if may_go(key))

    def removed(self, key: Hashable, *, evicted: bool) -> None:
        """Leave the order."""
        self._idle.pop(key, None)
