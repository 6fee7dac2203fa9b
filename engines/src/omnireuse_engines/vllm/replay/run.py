"""A trace through the shared encoder cache, by capacity, beside LRU and the clairvoyant bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omnireuse.base.validation import field_error
from omnireuse.errors import ConfigError
from omnireuse_engines.vllm.interface import EncoderKey, ItemTooLargeError
from omnireuse_engines.vllm.manager import SharedEncoderCacheManager
from omnireuse_engines.vllm.replay.oracles import interval_bound, lru_hits, min_hits
from omnireuse_engines.vllm.replay.traces import Access, requests_of

__all__ = ["BOUND", "LRU", "OURS", "Score", "default_capacities", "manager_hits", "replay"]

OURS = "S3-FIFO"
LRU = "LRU"
BOUND = "clairvoyant bound"
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, kw_only=True)
class Score:
    """How one policy did at one capacity.

    Attributes:
        policy: `OURS`, that of the shared encoder cache; `LRU`, that of vLLM; or `BOUND`.
        capacity: embeddings that the cache may hold.
        hit_ratio: accesses that were hits, of all.
        saved: encode seconds that hits saved, of all; embeddings if the trace has no cost.
        num_refused: misses that were encoded and not kept: larger than the cache, or the request's other items fill it.
    """

    policy: str
    capacity: int
    hit_ratio: float
    saved: float
    num_refused: int = 0


def manager_hits(trace: Sequence[Access], capacity: int) -> tuple[list[bool], int]:
    """Send a trace through the shared encoder cache; returns whether each access hit, and how many were refused."""
    manager = SharedEncoderCacheManager(capacity)
    hits, num_refused = [], 0
    for accesses in requests_of(trace):
        for position, access in enumerate(accesses):
            key = EncoderKey(content=access.key)
            hits.append(manager.hold(key, "request", position))
            if hits[-1]:
                continue
            try:
                lease = manager.reserve(key, "request", position, access.size)
            except ItemTooLargeError:
                lease = None
            if lease is None:
                num_refused += 1
            else:
                manager.commit(lease)
        manager.release_request("request")
    return hits, num_refused


def default_capacities(trace: Sequence[Access]) -> list[int]:
    """Return 1, 2, 5, 10, 20 and 50 % of the embeddings of all items, and at least the largest item."""
    sizes = {access.key: access.size for access in trace}
    return sorted({max(round(share * sum(sizes.values())), *sizes.values(), 1) for share in _SHARES})


def replay(
    trace: Sequence[Access],
    *,
    capacities: Sequence[int] = (),
    advance: Callable[[], object] = lambda: None,
) -> list[Score]:
    """Replay a trace; for each capacity the shared cache, then LRU and the bound.

    Args:
        trace: at least one access.
        capacities: embeddings, each ≥ 1; `default_capacities` if none.
        advance: called after each capacity.

    Raises:
        ConfigError: a capacity out of range, or an empty trace.
    """
    if not trace:
        raise ConfigError("replay(trace): trace must hold at least one access, got none")
    for capacity in capacities:
        if capacity < 1:
            raise field_error("replay", "capacity", "be ≥ 1 embedding", capacity)
    values = [access.size if access.cost is None else access.cost for access in trace]
    scores = []
    for capacity in sorted(set(capacities)) or default_capacities(trace):
        hits, num_refused = manager_hits(trace, capacity)
        scores.append(_score(OURS, capacity, hits, values, num_refused))
        scores.append(_score(LRU, capacity, lru_hits(trace, capacity), values))
        scores.append(_bound(trace, capacity, values))
        advance()
    return scores


def _score(policy: str, capacity: int, hits: list[bool], values: Sequence[float], num_refused: int = 0) -> Score:
    saved = sum(value for value, hit in zip(values, hits, strict=True) if hit)
    return Score(
        policy=policy,
        capacity=capacity,
        hit_ratio=sum(hits) / len(hits),
        saved=saved / sum(values),
        num_refused=num_refused,
    )


def _bound(trace: Sequence[Access], capacity: int, values: Sequence[float]) -> Score:
    if has_equal_sizes(trace) and len(set(values)) == 1:
        return _score(BOUND, capacity, min_hits(trace, capacity), values)
    if has_equal_sizes(trace):
        hit_ratio = sum(min_hits(trace, capacity)) / len(trace)
    else:
        hit_ratio = int(interval_bound(trace, capacity, [1.0] * len(trace)) + 1e-9) / len(trace)
    saved = interval_bound(trace, capacity, values) / sum(values)
    return Score(policy=BOUND, capacity=capacity, hit_ratio=hit_ratio, saved=saved)


def has_equal_sizes(trace: Sequence[Access]) -> bool:
    """Tell whether all items are of one size, so that the bound is the exact optimum."""
    return len({access.size for access in trace}) == 1
