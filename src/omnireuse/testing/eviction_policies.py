"""The contract of an eviction policy."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable

from omnireuse.encoders.eviction import EvictionPolicy

__all__ = ["check_eviction_policy"]


def check_eviction_policy(make: Callable[[], EvictionPolicy], *, accesses: int = 2_000, capacity: int = 40) -> None:
    """Drive an eviction policy through made-up accesses, as the shared encoder cache does.

    Checked: a victim is an entry that is there and may go, whatever else is in use; the same calls give the same
    victims; keys of any hashable kind serve; an entry that left may come back.

    Args:
        accesses: number of accesses in a run.
        capacity: size of the made-up cache, in the entries' unit.
    """
    policy = make()
    name = type(policy).__name__
    assert isinstance(policy, EvictionPolicy), f"{name} must inherit EvictionPolicy"
    for seed in range(3):
        victims = [_run(make(), accesses, capacity, seed) for _ in range(2)]
        assert victims[0] == victims[1], f"{name}: the same calls must give the same victims"
        assert victims[0], f"{name}: {accesses} accesses must have evicted something"


def _run(policy: EvictionPolicy, accesses: int, capacity: int, seed: int) -> list[Hashable]:
    name, draw = type(policy).__name__, random.Random(seed)
    sizes: dict[Hashable, int] = {}
    in_use: set[Hashable] = set()
    idle: OrderedDict[Hashable, None] = OrderedDict()
    victims: list[Hashable] = []

    def release(key: Hashable) -> None:
        in_use.discard(key)
        idle[key] = None
        policy.released(key)

    for _ in range(accesses):
        number = min(int(draw.paretovariate(0.7)), 200)
        key: Hashable = number if number % 2 else ("item", number)
        if key in sizes:
            idle.pop(key, None)
            policy.used(key)
        else:
            size = 1 + number % 5
            while sum(sizes.values()) + size > capacity:
                if not idle:
                    release(draw.choice(sorted(in_use, key=repr)))
                    continue
                victim = policy.victim(idle)
                assert victim in idle, f"{name}.victim must name an entry that is there and may go, got {victim!r}"
                del sizes[victim], idle[victim]
                policy.removed(victim, evicted=True)
                victims.append(victim)
            sizes[key] = size
            policy.stored(key, size)
        in_use.add(key)
        for each in sorted(in_use, key=repr):
            if draw.random() < 0.6:
                release(each)
        if draw.random() < 0.02 and idle:
            dropped = draw.choice(sorted(idle, key=repr))
            del sizes[dropped], idle[dropped]
            policy.removed(dropped, evicted=False)
    return victims
