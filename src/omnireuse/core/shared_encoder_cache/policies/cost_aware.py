"""Greedy-Dual-Size-Frequency: keep what is expensive to encode, often used and small.

Source: Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998:
priority = age + frequency · cost / size, where age is the priority of the last victim.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from omnireuse.core.shared_encoder_cache.policies.base import EvictionPolicy

__all__ = ["CostAware"]


@dataclass(slots=True)
class _Rank:
    """What an entry's priority is made of; `number` is that of its only valid place in the heap."""

    size: int
    cost: float
    frequency: int
    priority: float = 0.0
    number: int = 0


class CostAware(EvictionPolicy):
    """Evict the entry with the least frequency · cost / size, aged so that old popularity fades. O(log n)."""

    def __init__(self) -> None:
        self._age = 0.0
        self._ranks: dict[Hashable, _Rank] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._num_ranked = 0

    def stored(self, key: Hashable, size: int, cost: float) -> None:
        """Rank it as used once."""
        self._ranks[key] = rank = _Rank(size, cost, 1)
        self._update(key, rank)

    def used(self, key: Hashable) -> None:
        """Rank it up."""
        rank = self._ranks[key]
        rank.frequency += 1
        self._update(key, rank)

    def idle(self, key: Hashable) -> None:
        """The rank does not depend on it."""

    def cost_known(self, key: Hashable, cost: float) -> None:
        """Rank it by its true cost."""
        rank = self._ranks[key]
        rank.cost = cost
        self._update(key, rank)

    def victim(self, may_go: Callable[[Hashable], bool]) -> Hashable:
        """Return the entry of lowest rank."""
        passed_over = []
        while True:
            place = heapq.heappop(self._heap)
            _, number, key = place
            if key not in self._ranks or self._ranks[key].number != number:
                continue  # outdated
            passed_over.append(place)
            if may_go(key):
                break
        for place in passed_over:
            heapq.heappush(self._heap, place)
        return key

    def removed(self, key: Hashable, *, evicted: bool) -> None:
        """Forget it; entries that stay are measured against it."""
        rank = self._ranks.pop(key)
        if evicted:
            self._age = max(self._age, rank.priority)

    def _update(self, key: Hashable, rank: _Rank) -> None:
        self._num_ranked += 1
        rank.priority = self._age + rank.frequency * rank.cost / max(rank.size, 1)
        rank.number = self._num_ranked
        heapq.heappush(self._heap, (rank.priority, rank.number, key))
        if len(self._heap) > 4 * len(self._ranks) + 64:  # outdated places outnumber the valid ones
            self._heap = [(each.priority, each.number, key) for key, each in self._ranks.items()]
            heapq.heapify(self._heap)
