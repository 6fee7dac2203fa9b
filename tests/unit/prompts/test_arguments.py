"""The key as specified: which arguments share an entry, which are kept apart, and which bypass the cache."""

import numpy as np
import pytest
import torch

from omnireuse.diffusion.cache.prompt_embed_cache import (
    install_prompt_embed_cache,
)

from .conftest import Pipeline

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
    (recursive(), "large_key"),
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
    assert max(len(repr(key)) for key in cache.store.snapshot()) < 2000


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
