"""The store as specified: get, put and clear, its bounds, and whose the values are."""

import dataclasses
import logging
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch

from omnireuse.diffusion.cache.prompt_embed_cache import (
    _CACHE_MISS,
    PromptEmbedCache,
    install_prompt_embed_cache,
)
from omnireuse.errors import ConfigError, WrongTypeError

from .conftest import Pipeline


def test_get_and_put_keep_none_apart_from_a_miss():
    cache = PromptEmbedCache()
    assert cache.get("k") is _CACHE_MISS
    cache.put("k", None)
    assert cache.get("k") is None
    assert cache.stats() == {"size": 1, "max_size": 32, "hits": 1, "misses": 1, "bypassed": 0}


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None, "3"])
def test_a_size_below_one_is_refused(size):
    with pytest.raises(ValueError, match=r"PromptEmbedCache\(max_size="):
        PromptEmbedCache(max_size=size)


@pytest.mark.parametrize("max_bytes", [0, -5, 2.0, True])
def test_a_byte_budget_below_one_is_refused(max_bytes):
    with pytest.raises(ConfigError, match="max_bytes"):
        PromptEmbedCache(max_bytes=max_bytes)


def test_a_smaller_size_evicts_at_once_and_a_larger_one_gives_room():
    cache = PromptEmbedCache(max_size=4)
    for key in "abcd":
        cache.put(key, key)
    cache.get("a")
    cache.max_size = 2
    assert cache.stats() == {"size": 2, "max_size": 2, "hits": 1, "misses": 0, "bypassed": 0}
    assert [cache.get(key) for key in "abcd"] == ["a", _CACHE_MISS, _CACHE_MISS, "d"]
    assert cache.details()["evictions"] == 2
    cache.max_size = 3
    for key in "efg":
        cache.put(key, key)
    assert cache.stats()["size"] == 3
    with pytest.raises(ConfigError, match=r"max_size=0"):
        cache.max_size = 0
    assert cache.max_size == 3


def test_counters_may_be_assigned():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("a", prompt_embeds=torch.ones(1))
    cache.hits, cache.misses = 7, 0
    cache.bypassed += 2
    assert cache.stats() == {"size": 0, "max_size": 32, "hits": 7, "misses": 0, "bypassed": 3}
    assert cache.bypassed_by == {"embeds": 1}


@dataclasses.dataclass
class Embeds:
    text: torch.Tensor
    pooled: torch.Tensor | None = None
    names: tuple[str, ...] = ("x",)


@dataclasses.dataclass(frozen=True, slots=True)
class Closed:
    text: torch.Tensor

    def __post_init__(self):
        raise AssertionError("a copy is not a new one")


class Box:
    def __init__(self, tensor):
        self.tensor = tensor


def test_dataclasses_and_ordered_dicts_are_copied_with_their_tensors():
    cache, tensor = PromptEmbedCache(), torch.ones(4, requires_grad=True)
    closed = object.__new__(Closed)
    object.__setattr__(closed, "text", tensor)
    values = {
        "dataclass": Embeds(tensor * 1),
        "slots": closed,
        "ordered": OrderedDict(b=tensor * 1, a=[2]),
    }
    for name, value in values.items():
        cache.put(name, value)
    assert cache.details()["num_bytes"] == 3 * 16
    kept = cache.get("dataclass")
    assert (type(kept), kept.pooled, kept.names) == (Embeds, None, ("x",))
    assert not kept.text.requires_grad
    assert torch.equal(kept.text, tensor)
    assert type(cache.get("slots")) is Closed
    ordered = cache.get("ordered")
    assert (type(ordered), list(ordered)) == (OrderedDict, ["b", "a"])


@pytest.mark.parametrize(
    "value",
    [
        Box(torch.ones(4)),
        {Box(1)},
        torch.ones(2, requires_grad=True).to_sparse(),
        np.array([None]),
    ],
    ids=["object", "set of objects", "sparse", "array of objects"],
)
def test_what_cannot_be_looked_into_is_kept_as_it_is_and_counted_by_entry_only(value, caplog):
    cache = PromptEmbedCache(max_bytes=16)
    with caplog.at_level(logging.INFO):
        cache.put("k", (value, torch.ones(4)))
    kept, tensor = cache.get("k")
    assert "kept as it is" in caplog.text
    assert cache.details()["num_bytes"] == 16
    assert torch.equal(tensor, torch.ones(4))
    if isinstance(value, torch.Tensor):
        assert not kept.requires_grad
    else:
        assert kept is value


def test_get_and_put_tell_types_apart_and_nan_is_one_key():
    cache = PromptEmbedCache()
    cache.put(1, "int")
    cache.put(True, "bool")
    cache.put(1.0, "float")
    for value in "ab":
        cache.put(("p", float("nan")), value)
    assert [cache.get(k) for k in (1, True, 1.0, ("p", float("nan")))] == ["int", "bool", "float", "b"]
    assert cache.stats()["size"] == 4


def test_values_are_detached_and_hold_no_base():
    base = torch.arange(1000.0, requires_grad=True)
    cache = PromptEmbedCache()
    cache.put("view", (base * 1)[10:20])
    kept = cache.get("view")
    assert torch.equal(kept, base.detach()[10:20])
    assert not kept.requires_grad
    assert kept.untyped_storage().nbytes() == 40
    cache.put("row", torch.zeros(1, 3).expand(100, 3))
    assert cache.get("row").shape == (100, 3)


def test_lists_and_dicts_of_a_hit_are_the_callers_own():
    cache = PromptEmbedCache()
    cache.put("k", {"a": [1, 2]})
    cache.get("k")["a"].append(3)
    assert cache.get("k") == {"a": [1, 2]}


def test_a_put_of_something_else_is_refused():
    with pytest.raises(WrongTypeError, match="generator"):
        PromptEmbedCache().put("k", (x for x in "a"))


def test_the_miss_sentinel_stays_one_through_pickle():
    assert pickle.loads(pickle.dumps(_CACHE_MISS)) is _CACHE_MISS
