"""Made-up traces with known character: skewed, skewed with scans between, and conversations.

Sizes are those of common vision encoders, encode times a made-up fixed part plus one that grows with the size. They
show how policies differ; what a service gains is told by a trace of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from msgspec.structs import replace

from omnireuse.base.validation import field_error
from omnireuse.errors import UnknownNameError
from omnireuse_engines.vllm.replay.traces import Access

__all__ = ["KINDS", "make_trace"]

_SIZES = (144, 256, 576, 729, 1024, 2304)
_SKEW = 0.9  # the exponent that web and image request streams are usually fitted with


@dataclass
class _Items:
    """Items by name, each with the size that it keeps."""

    rng: random.Random
    size: int | None
    made: dict[str, Access] = field(default_factory=dict)

    def access(self, key: str) -> Access:
        if key not in self.made:
            size = self.rng.choice(_SIZES) if self.size is None else self.size
            self.made[key] = Access(key=key, size=size, cost=round(0.005 + 2e-5 * size, 6))
        return self.made[key]


def make_trace(kind: str, *, num_accesses: int, seed: int = 0, size: int | None = None) -> list[Access]:
    """Make a trace.

    Args:
        kind: "zipf": one item in ten accesses, the k-th most popular asked for in proportion to k^-0.9.
            "scan": the same, and a third of it are items seen once, in runs.
            "multi-turn": conversations that show all their images again in every turn.
        num_accesses: length, ≥ 1.
        seed: decides everything; the same seed gives the same trace.
        size: embeddings of every item; None for a mix.

    Raises:
        UnknownNameError: no such kind.
        ConfigError: a number out of range.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of trace", kind, KINDS)
    for name, value in (("num_accesses", num_accesses), ("size", 1 if size is None else size)):
        if value < 1:
            raise field_error("make_trace", name, "be ≥ 1", value)
    return KINDS[kind](_Items(random.Random(seed), size), num_accesses)


def _popular(rng: random.Random, num_items: int, count: int) -> list[int]:
    weights = list(accumulate(rank**-_SKEW for rank in range(1, num_items + 1)))
    return rng.choices(range(num_items), cum_weights=weights, k=count)


def _zipf(items: _Items, num_accesses: int) -> list[Access]:
    return [items.access(f"item {k}") for k in _popular(items.rng, max(1, num_accesses // 10), num_accesses)]


def _scan(items: _Items, num_accesses: int) -> list[Access]:
    run = max(1, num_accesses // 60)
    hot = iter(_zipf(items, num_accesses))
    trace: list[Access] = []
    while len(trace) < num_accesses:
        trace += [next(hot) for _ in range(2 * run)]
        trace += [items.access(f"once {len(trace) + k}") for k in range(run)]
    return trace[:num_accesses]


def _multi_turn(items: _Items, num_accesses: int) -> list[Access]:
    rng, trace = items.rng, list[Access]()
    num_alive = max(2, num_accesses // 500)
    talks: list[list[str]] = [[] for _ in range(num_alive)]
    names, num_images, num_requests = list(range(num_alive)), 0, 0
    while len(trace) < num_accesses:
        k = rng.randrange(num_alive)
        for _ in range(rng.choice((0, 1, 1, 2)) if talks[k] else 1):
            talks[k].append(f"talk {names[k]} image {num_images}")
            num_images += 1
        num_requests += 1
        trace += [replace(items.access(key), request=f"turn {num_requests}") for key in talks[k]]
        if rng.random() < 1 / 6:  # six turns on average
            names[k], talks[k] = max(names) + 1, []
    return trace[:num_accesses]


KINDS: dict[str, Callable[[_Items, int], list[Access]]] = {"zipf": _zipf, "scan": _scan, "multi-turn": _multi_turn}
