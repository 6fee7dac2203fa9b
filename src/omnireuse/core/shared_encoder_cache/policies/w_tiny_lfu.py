"""W-TinyLFU: who leaves is settled by how often each was asked for, over a fading history.

Source: Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM ToS 2017, section 4. Exact
counts that are halved from time to time stand in for its sketch: beside an encoder output, a dict entry is nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from omnireuse.core.shared_encoder_cache.policies.base import EvictionPolicy

__all__ = ["WTinyLFU"]

_WINDOW_SHARE = 0.05
_PROTECTED_SHARE = 0.8
_HISTORY_PER_ENTRY = 10


class WTinyLFU(EvictionPolicy):
    """Keep a small window of recent entries before a segmented LRU; the less asked-for of the two candidates leaves."""

    def __init__(self) -> None:
        self._window: OrderedDict[Hashable, None] = OrderedDict()
        self._probation: OrderedDict[Hashable, None] = OrderedDict()
        self._protected: OrderedDict[Hashable, None] = OrderedDict()
        self._size: dict[Hashable, int] = {}
        self._asked: dict[Hashable, int] = {}
        self._num_asked = 0
        self._window_size = self._protected_size = self._total_size = 0

    def stored(self, key: Hashable, size: int, cost: float) -> None:
        """Enter the window."""
        self._ask(key)
        self._size[key] = size
        self._window[key] = None
        self._window_size += size
        self._total_size += size

    def used(self, key: Hashable) -> None:
        """Count it, and move up: within the window, or from probation to the protected segment."""
        self._ask(key)
        if key in self._window:
            self._window.move_to_end(key)
        elif key in self._protected:
            self._protected.move_to_end(key)
        else:
            del self._probation[key]
            self._protected[key] = None
            self._protected_size += self._size[key]
            while self._protected_size > _PROTECTED_SHARE * self._total_size and len(self._protected) > 1:
                demoted, _ = self._protected.popitem(last=False)
                self._protected_size -= self._size[demoted]
                self._probation[demoted] = None

    def idle(self, key: Hashable) -> None:
        """The order is by use, not by release."""

    def victim(self, may_go: Callable[[Hashable], bool]) -> Hashable:
        """Let the window overflow into probation, then weigh the newcomer against the oldest there."""
        newcomer: Hashable | None = None
        while self._window_size > _WINDOW_SHARE * self._total_size and len(self._window) > 1:
            newcomer, _ = self._window.popitem(last=False)
            self._window_size -= self._size[newcomer]
            self._probation[newcomer] = None
        main = (key for segment in (self._probation, self._protected) for key in segment)
        oldest = next((key for key in main if may_go(key)), None)
        if oldest is None:
            return next(key for key in self._window if may_go(key))
        if newcomer is not None and may_go(newcomer) and self._asked.get(newcomer, 0) <= self._asked.get(oldest, 0):
            return newcomer
        return oldest

    def removed(self, key: Hashable, *, evicted: bool) -> None:
        """Leave its segment; the count stays and fades."""
        size = self._size.pop(key)
        self._total_size -= size
        if key in self._window:
            del self._window[key]
            self._window_size -= size
        elif key in self._protected:
            del self._protected[key]
            self._protected_size -= size
        else:
            del self._probation[key]

    def _ask(self, key: Hashable) -> None:
        self._asked[key] = self._asked.get(key, 0) + 1
        self._num_asked += 1
        if self._num_asked > _HISTORY_PER_ENTRY * max(len(self._size), 16):
            self._asked = {key: count // 2 for key, count in self._asked.items() if count > 1}
            self._num_asked = sum(self._asked.values())
