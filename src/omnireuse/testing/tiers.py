"""The contract of a tier: a place outside of this process that may keep values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from omnireuse.stores.tier import Tier

__all__ = ["check_tier"]

ABSENT = object()


def check_tier(make: Callable[[str], Tier]) -> None:
    """Store, read and drop values.

    Checked: what was put is found, tensors bit for bit; None is a value; what was discarded is a miss; namespaces
    are apart; what is no value of tensors and plain data is refused and counted; counters say what happened.

    Args:
        make: gives a tier of a namespace; two tiers of one namespace share their values.
    """
    first, second, other = make("one"), make("one"), make("two")
    name = type(first).__name__
    values: list[Any] = [
        torch.arange(12, dtype=torch.float32).reshape(3, 4),
        {"a": (torch.ones(2, dtype=torch.bfloat16), 1.5), "b": [True, "text"]},
        None,
    ]
    for number, value in enumerate(values):
        key = f"key {number}"
        assert first.lookup(key, ABSENT) is ABSENT, f"{name}: nothing was put under {key!r}"
        assert first.put(key, value), f"{name}.put must take {value!r:.60}"
        for tier in (first, second):
            found = tier.lookup(key, ABSENT)
            assert found is not ABSENT, f"{name}: {key!r} was put and must be found"
            assert _same(found, value), f"{name}: {key!r} must come back as it was put"
        assert other.lookup(key, ABSENT) is ABSENT, f"{name}: another namespace must not see {key!r}"
    first.discard("key 0")
    assert second.lookup("key 0", ABSENT) is ABSENT, f"{name}: what was discarded must be gone for all"
    first.discard("key 0")
    assert not first.put("object", object()), f"{name}.put must refuse what is no value"
    counts = first.counts
    assert (counts["hits"], counts["misses"], counts["writes"], counts["unstorable"]) == (3, 3, 3, 1), (
        f"{name}.counts must say what happened, got {dict(counts)}"
    )
    for tier in (first, second, other):
        tier.close()


def _same(found: object, value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return isinstance(found, torch.Tensor) and found.dtype == value.dtype and torch.equal(found, value)
    if isinstance(value, dict):
        return isinstance(found, dict) and all(_same(found.get(key), each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return type(found) is type(value) and all(map(_same, found, value))
    return bool(found == value)
