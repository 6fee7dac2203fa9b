"""What to compare a cache with: plain LRU, and what no cache can beat because it knows the future."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from omnireuse_engines.vllm.replay.traces import Access

__all__ = ["interval_bound", "lru_hits", "min_hits"]


def lru_hits(trace: Sequence[Access], capacity: int) -> list[bool]:
    """Tell for each access whether plain LRU hits; an item larger than the cache passes by."""
    kept: OrderedDict[str, int] = OrderedDict()
    used, hits = 0, []
    for access in trace:
        hits.append(access.key in kept)
        if hits[-1]:
            kept.move_to_end(access.key)
        elif access.size <= capacity:
            while used + access.size > capacity:
                used -= kept.popitem(last=False)[1]
            kept[access.key] = access.size
            used += access.size
    return hits


def min_hits(trace: Sequence[Access], capacity: int) -> list[bool]:
    """Tell for each access of a trace of equal sizes whether it hits, if what is needed last leaves first.

    This is optimal, also among caches that need not keep what they just encoded.

    Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966 (MIN).
    """
    num_kept, following = capacity // trace[0].size, _next_accesses(trace)
    kept: dict[str, int] = {}  # → when it is needed next
    furthest: list[tuple[int, str]] = []
    hits = []
    for number, access in enumerate(trace):
        hits.append(kept.pop(access.key, None) is not None)
        needed = following[number]
        if needed is not None:
            kept[access.key] = needed
            heapq.heappush(furthest, (-needed, access.key))
        while len(kept) > num_kept:
            minus_needed, key = heapq.heappop(furthest)
            if kept.get(key) == -minus_needed:  # else: used since, and pushed again
                del kept[key]
    return hits


def interval_bound(trace: Sequence[Access], capacity: int, values: Sequence[float]) -> float:
    """Bound the value of all hits from above, for any mix of sizes, if a hit at access k is worth `values[k]`.

    A hit takes its item's size for as long as the item has to stay, and the cache offers capacity · time in all. The
    best share of that, whatever lies beside what when, is a fractional knapsack; no cache can do better.

    Source: Berger, Beckmann, Harchol-Balter, "Practical Bounds on Optimal Caching with Variable Object Sizes",
    SIGMETRICS 2018, section 5.1 (PFOO-L).
    """
    left = float(capacity * (len(trace) - 1))
    stays = [
        (access.size * (needed - number), values[needed])
        for number, (access, needed) in enumerate(zip(trace, _next_accesses(trace), strict=True))
        if needed is not None and access.size <= capacity
    ]
    total = 0.0
    for space_time, value in sorted(stays, key=lambda stay: stay[0] / stay[1]):
        share = min(1.0, left / space_time)
        total += share * value
        left -= share * space_time
        if left <= 0:
            break
    return total


def _next_accesses(trace: Sequence[Access]) -> list[int | None]:
    following: list[int | None] = [None] * len(trace)
    last: dict[str, int] = {}
    for number, access in enumerate(trace):
        if access.key in last:
            following[last[access.key]] = number
        last[access.key] = number
    return following
