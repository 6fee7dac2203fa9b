"""The interface as specified: get and put, install and uninstall, the environment, and each known trap."""

import inspect
import logging
import pickle

import numpy as np
import pytest
import torch

from omnireuse.diffusion.cache import prompt_embed_cache as module
from omnireuse.diffusion.cache.prompt_embed_cache import (
    _CACHE_MISS,
    KeyRules,
    PromptCacheOptions,
    PromptEmbedCache,
    bump_epoch,
    install_prompt_embed_cache,
    resolve_prompt_embed_cache_config,
    uninstall_prompt_embed_cache,
)
from omnireuse.diffusion.prompts.changes import changes
from omnireuse.errors import ConfigError, StateError, UnsupportedModelError, WrongTypeError

from .conftest import Pipeline

SWITCH, SIZE = "OMNI_DIFFUSION_PROMPT_EMBED_CACHE", "OMNI_DIFFUSION_PROMPT_EMBED_CACHE_SIZE"


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


SAME = [
    ("a", "a"),
    (1, 1),
    (None, None),
    ([1, (2, {"k": 3.5})], [1, (2, {"k": 3.5})]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
]
SAME += [(float("nan"), float("nan")), (np.float32("nan"), np.float32("nan")), (b"x", b"x"), (np.int64(3), np.int64(3))]
SAME += [(torch.float16, torch.float16), (torch.device("cpu"), torch.device("cpu")), (2**5000, 2**5000)]
SAME += [(torch.tensor([1, 2]), torch.tensor([1, 2])), (np.array([0.5]), np.array([0.5]))]
APART = [(True, 1), (1, 1.0), (True, 1.0), (0.0, -0.0), ([1], (1,)), ("1", 1), ("a", b"a"), (None, "None"), ([], ())]
APART += [
    ([[1], 2], [[1, 2]]),
    ({"a": 1}, [("a", 1)]),
    (np.int32(3), np.int64(3)),
    (np.float64(1), 1.0),
    ({1: 0}, {True: 0}),
]
APART += [(torch.float16, "torch.float16"), (torch.device("cpu"), "cpu"), (torch.tensor([1]), torch.tensor([True]))]
APART += [(torch.tensor([1, 2]), torch.tensor([[1, 2]])), (np.array([1]), torch.tensor([1])), (1e400, float("nan"))]
APART += [("x" * 5000, "x" * 5001), (["x"] * 3000, ("x",) * 3000), ("x" * 5000, ("text", 5000))]


@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
def test_equal_arguments_share_an_entry(one, other):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p", extra=one)
    pipeline.encode_prompt("p", extra=other)
    assert (pipeline.num_encodes, cache.hits, len(cache.store)) == (1, 1, 1)


@pytest.mark.parametrize(("one", "other"), APART, ids=lambda v: repr(v)[:40])
def test_arguments_of_other_type_or_value_do_not(one, other):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p", extra=one)
    pipeline.encode_prompt("p", extra=other)
    assert (pipeline.num_encodes, cache.misses, cache.bypassed) == (2, 2, 0)


def test_get_and_put_tell_types_apart_too():
    cache = PromptEmbedCache()
    cache.put(1, "int")
    cache.put(True, "bool")
    cache.put(1.0, "float")
    assert [cache.get(k) for k in (1, True, 1.0)] == ["int", "bool", "float"]


def test_nan_bypasses_where_the_rules_say_so():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline, options=PromptCacheOptions(key_rules=KeyRules(nan="bypass")))
    for value in (float("nan"), np.float64("nan"), [float("nan")], np.array([1.0, float("nan")])):
        pipeline.encode_prompt("p", extra=value)
    assert cache.details()["bypassed_nan"] == 4
    assert cache.stats()["size"] == 0


def test_positional_and_keyword_spellings_and_defaults_meet():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p", None, 1)
    pipeline.encode_prompt(prompt="p")
    pipeline.encode_prompt("p", scale=1, negative_prompt=None)
    assert (pipeline.num_encodes, cache.hits) == (1, 2)


def test_a_hit_is_what_the_direct_call_gives():
    pipeline, twin = Pipeline(), Pipeline()
    install_prompt_embed_cache(pipeline)
    for _ in range(2):
        got, want = pipeline.encode_prompt("p", "n"), twin.encode_prompt("p", "n")
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert pipeline.encode_prompt("p")[1] is None


@pytest.mark.parametrize("name", ["prompt_embeds", "prompt_embeds_mask"])
def test_embeddings_of_the_caller_bypass(name):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(2):
        pipeline.encode_prompt("p", **{name: torch.ones(1)})
    assert (pipeline.num_encodes, cache.bypassed, cache.bypassed_by["embeds"]) == (2, 2, 2)
    pipeline.encode_prompt("p", **{name: None})
    assert cache.bypassed == 2


def recursive():
    value = []
    value.append(value)
    return value


def wide():
    value = [1]
    for _ in range(40):
        value = [value, value]
    return value


BYPASSES = [
    (object(), "type"),
    ({1, 2}, "type"),
    (lambda: 1, "type"),
    (recursive(), "recursive"),
    (wide(), "large_key"),
]
BYPASSES += [(torch.ones(2), "float_tensor"), (np.array([object()]), "type"), ((x for x in "a"), "type"), (1j, "type")]
BYPASSES += [([torch.ones(1)], "float_tensor"), (torch.empty(3, dtype=torch.int64, device="meta"), "type")]


@pytest.mark.parametrize(("value", "reason"), BYPASSES, ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_what_has_no_key_bypasses_with_its_reason(value, reason):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(2):
        pipeline.encode_prompt("p", extra=value)
    assert (pipeline.num_encodes, cache.details()[f"bypassed_{reason}"], len(cache.store)) == (2, 2, 0)


def test_a_megabyte_of_prompt_makes_a_small_key():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    for prompt in ("x" * 2**20, "x" * 2**20, ["y" * 100] * 10_000, "\ud800" * 5000):
        pipeline.encode_prompt("p", extra=prompt)
    assert (cache.hits, cache.misses) == (1, 3)
    assert max(len(repr(key)) for key in cache.store) < 2000


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


def test_what_the_first_caller_does_to_its_result_stays_its_own():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    first = pipeline.encode_prompt("p")[0]
    want = first.clone()
    first.zero_()
    assert torch.equal(pipeline.encode_prompt("p")[0], want)


def test_gradients_are_cut_and_reported(caplog):
    pipeline = Pipeline()
    raw = inspect.unwrap(Pipeline.encode_prompt)
    pipeline.encode_prompt = raw.__get__(pipeline)
    install_prompt_embed_cache(pipeline)
    with caplog.at_level(logging.WARNING):
        assert pipeline.encode_prompt("p")[0].requires_grad
    assert "with gradients on" in caplog.text
    assert not pipeline.encode_prompt("p")[0].requires_grad


def test_lists_and_dicts_of_a_hit_are_the_callers_own():
    cache = PromptEmbedCache()
    cache.put("k", {"a": [1, 2]})
    cache.get("k")["a"].append(3)
    assert cache.get("k") == {"a": [1, 2]}


def test_install_again_returns_the_cache_and_reports_other_arguments(caplog):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    with caplog.at_level(logging.WARNING):
        assert install_prompt_embed_cache(pipeline) is cache
        assert caplog.text == ""
        assert install_prompt_embed_cache(pipeline, max_size=7) is cache
    assert "max_size=7 (installed: 32)" in caplog.text


def test_uninstall_leaves_nothing_behind():
    pipeline = Pipeline()
    before, num_open = dict(vars(pipeline)), changes._num_open
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p")
    pipeline.num_encodes = 0
    pipeline.prompts.clear()
    assert uninstall_prompt_embed_cache(pipeline) is True
    assert vars(pipeline) == before
    assert pipeline.encode_prompt == Pipeline.encode_prompt.__get__(pipeline)
    assert uninstall_prompt_embed_cache(pipeline) is False
    assert changes._num_open == num_open


def test_uninstall_restores_a_function_of_the_instance():
    pipeline = Pipeline()
    own = pipeline.encode_prompt = lambda prompt: torch.ones(1)
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("a")
    pipeline.encode_prompt("a")
    assert cache.hits == 1
    uninstall_prompt_embed_cache(pipeline)
    assert pipeline.encode_prompt is own


def test_uninstall_under_another_wrapper_says_so():
    import functools

    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt = functools.partial(pipeline.encode_prompt, scale=2)
    with pytest.raises(StateError, match="wrapped again"):
        uninstall_prompt_embed_cache(pipeline)


def test_no_callable_encode_prompt_gives_none():
    assert install_prompt_embed_cache(object()) is None
    pipeline = Pipeline()
    pipeline.encode_prompt = "text"
    assert install_prompt_embed_cache(pipeline) is None


def test_an_object_that_takes_no_attribute_is_named():
    class Closed:
        __slots__ = ()

        def encode_prompt(self, prompt):
            return prompt

    with pytest.raises(UnsupportedModelError, match="Closed"):
        install_prompt_embed_cache(Closed())


def test_the_wrapper_looks_like_the_function():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    assert inspect.signature(pipeline.encode_prompt) == inspect.signature(Pipeline().encode_prompt)
    assert pipeline.encode_prompt.__name__ == "encode_prompt"
    assert pipeline.encode_prompt.__doc__ == "Encode."
    assert pipeline.encode_prompt.__self__ is pipeline


def test_a_freed_pipeline_is_freed():
    import weakref

    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p")
    gone, encoder = weakref.ref(pipeline), weakref.ref(pipeline.text_encoder)
    del pipeline
    assert gone() is None
    assert encoder() is None


def test_switching_off_calls_through():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline, enabled=False)
    pipeline.encode_prompt("p")
    pipeline.encode_prompt("p")
    assert (pipeline.num_encodes, cache.stats()["misses"]) == (2, 0)
    cache.enabled = True
    pipeline.encode_prompt("p")
    pipeline.encode_prompt("p")
    assert (pipeline.num_encodes, cache.hits) == (3, 1)


@pytest.mark.parametrize("text", ["1", "true", "YES", " On "])
def test_the_environment_switches_on(monkeypatch, text):
    monkeypatch.setenv(SWITCH, text)
    assert resolve_prompt_embed_cache_config(False, 5) == (True, 5)


@pytest.mark.parametrize("text", ["0", "False", "no", "OFF"])
def test_the_environment_switches_off(monkeypatch, text):
    monkeypatch.setenv(SWITCH, text)
    monkeypatch.setenv(SIZE, "12")
    assert resolve_prompt_embed_cache_config(True) == (False, 12)


def test_without_environment_and_arguments_it_is_on_with_32(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.delenv(SIZE, raising=False)
    assert resolve_prompt_embed_cache_config() == (True, 32)


@pytest.mark.parametrize(
    ("name", "text"), [(SWITCH, "maybe"), (SWITCH, ""), (SIZE, "0"), (SIZE, "-3"), (SIZE, "4.0"), (SIZE, "9" * 30)]
)
def test_an_unusable_override_is_reported(monkeypatch, caplog, name, text):
    monkeypatch.setenv(name, text)
    with caplog.at_level(logging.WARNING):
        assert resolve_prompt_embed_cache_config(True, 8) == (True, 8)
    assert f"{name}={text!r}" in caplog.text


def test_a_size_argument_below_one_is_refused():
    with pytest.raises(ConfigError, match="max_size"):
        resolve_prompt_embed_cache_config(max_size=0)


def test_a_call_that_does_not_fit_raises_the_functions_own_error():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    with pytest.raises(TypeError, match="unexpected keyword argument 'promt'"):
        pipeline.encode_prompt(promt="p")
    with pytest.raises(TypeError, match="prompt"):
        pipeline.encode_prompt()
    with pytest.raises(TypeError, match="multiple values"):
        pipeline.encode_prompt("p", prompt="p")
    assert cache.bypassed_by["signature"] == 3


def test_a_put_of_something_else_is_refused():
    with pytest.raises(WrongTypeError, match="generator"):
        PromptEmbedCache().put("k", (x for x in "a"))


def test_bump_without_a_cache_says_what_to_do():
    with pytest.raises(StateError, match="install_prompt_embed_cache"):
        bump_epoch(Pipeline())


def test_the_public_names_are_there():
    assert all(hasattr(module, name) for name in module.__all__)
    assert {"_CACHE_MISS", "PromptEmbedCache", "install_prompt_embed_cache"} < set(module.__all__)
