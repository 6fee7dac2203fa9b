"""Greedy-Dual-Size-Frequency: keep what is dear to encode, often asked for and small.

Source: Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998:
priority = age + frequency · cost / size, where age is the priority of the last victim.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable

from omnireuse.core.shared_encoder_cache.policies.base import EvictionPolicy

__all__ = ["CostAware"]


class CostAware(EvictionPolicy):
    """Evict the entry with the least frequency · cost / size, aged so that old fame fades. O(log n)."""

    def __init__(self) -> None:
        self._age = 0.0
        self._size: dict[Hashable, int] = {}
        self._cost: dict[Hashable, float] = {}
        self._frequency: dict[Hashable, int] = {}
        self._priority: dict[Hashable, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._num_ranked = 0

    def stored(self, key: Hashable, size: int, cost: float) -> None:
        """Rank it as asked for once."""
        self._size[key], self._cost[key], self._frequency[key] = size, cost, 1
        self._rank(key)

    def used(self, key: Hashable) -> None:
        """Rank it up."""
        self._frequency[key] += 1
        self._rank(key)

    def idle(self, key: Hashable) -> None:
        """The rank does not depend on it."""

    def cost_known(self, key: Hashable, cost: float) -> None:
        """Rank it by what it really cost."""
        self._cost[key] = cost
        self._rank(key)

    def victim(self, may_go: Callable[[Hashable], bool]) -> Hashable:
        """Name the one of lowest rank."""
        passed_over = []
        while True:
            entry = heapq.heappop(self._heap)
            priority, number, key = entry
            if self._priority.get(key) != (priority, number):
                continue  # ranked anew or gone since
            passed_over.append(entry)
            if may_go(key):
                break
        for entry in passed_over:
            heapq.heappush(self._heap, entry)
        return key

    def removed(self, key: Hashable, *, evicted: bool) -> None:
        """Forget it; what stays is measured against it."""
        if evicted:
            self._age = max(self._age, self._priority[key][0])
        del self._size[key], self._cost[key], self._frequency[key], self._priority[key]

    def _rank(self, key: Hashable) -> None:
        priority = self._age + self._frequency[key] * self._cost[key] / max(self._size[key], 1)
        self._num_ranked += 1
        self._priority[key] = (priority, self._num_ranked)
        heapq.heappush(self._heap, (priority, self._num_ranked, key))
        if len(self._heap) > 4 * len(self._priority) + 64:  # outdated ranks outnumber the valid ones
            self._heap = [(p, number, k) for k, (p, number) in self._priority.items()]
            heapq.heapify(self._heap)
