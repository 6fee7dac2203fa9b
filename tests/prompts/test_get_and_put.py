"""The store as specified: get, put and clear, its bounds, and whose the values are."""

import pickle

import pytest
import torch

from omnireuse.diffusion.cache import prompt_embed_cache as module
from omnireuse.diffusion.cache.prompt_embed_cache import (
    _CACHE_MISS,
    PromptEmbedCache,
)
from omnireuse.errors import ConfigError, WrongTypeError


def test_get_and_put_keep_none_apart_from_a_miss():
    cache = PromptEmbedCache()
    assert cache.get("k") is _CACHE_MISS
    cache.put("k", None)
    assert cache.get("k") is None
    assert cache.stats() == {"size": 1, "max_size": 32, "hits": 1, "misses": 1, "bypassed": 0}


def test_the_least_recently_used_entry_leaves():
    cache = PromptEmbedCache(max_size=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(k) for k in "abc"] == [1, _CACHE_MISS, 3]


def test_clear_keeps_the_counters():
    cache = PromptEmbedCache()
    cache.put("a", 1)
    cache.get("a")
    cache.clear()
    assert cache.stats() == {"size": 0, "max_size": 32, "hits": 1, "misses": 0, "bypassed": 0}


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None, "3"])
def test_a_size_below_one_is_refused(size):
    with pytest.raises(ValueError, match=r"PromptEmbedCache\(max_size="):
        PromptEmbedCache(max_size=size)


@pytest.mark.parametrize("max_bytes", [0, -5, 2.0, True])
def test_a_byte_budget_below_one_is_refused(max_bytes):
    with pytest.raises(ConfigError, match="max_bytes"):
        PromptEmbedCache(max_bytes=max_bytes)


def test_a_disabled_cache_stores_and_counts_nothing():
    cache = PromptEmbedCache(enabled=False)
    cache.put("a", 1)
    assert cache.get("a") is _CACHE_MISS
    assert set(cache.stats().values()) == {0, 32}


def test_the_miss_sentinel_stays_one_through_pickle():
    assert pickle.loads(pickle.dumps(_CACHE_MISS)) is _CACHE_MISS


def test_get_and_put_tell_types_apart_too():
    cache = PromptEmbedCache()
    cache.put(1, "int")
    cache.put(True, "bool")
    cache.put(1.0, "float")
    assert [cache.get(k) for k in (1, True, 1.0)] == ["int", "bool", "float"]


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


def test_the_public_names_are_there():
    assert all(hasattr(module, name) for name in module.__all__)
    assert {"_CACHE_MISS", "PromptEmbedCache", "install_prompt_embed_cache"} < set(module.__all__)
