"""How changes of weights are noticed: by version counters where there are any, and inside wrappers."""

import gc
import weakref

import numpy as np
import torch
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache

from .conftest import Pipeline
from .test_never_stale import direct, weight


class Wrapped(torch.Tensor):
    """A wrapper subclass in the manner of quantised weights: its values are in a plain tensor inside."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = [a.inner if isinstance(a, Wrapped) else a for a in args]
        result = function(*plain, **(kwargs or {}))
        keeps = (torch.ops.aten._to_copy.default, torch.ops.aten.detach.default)
        return Wrapped(result) if function in keeps else result


def test_weights_inside_a_wrapper_are_watched_and_may_still_be_moved():
    pipeline = Pipeline()
    pipeline.text_encoder.out.weight = nn.Parameter(Wrapped(torch.ones(4, 4)), requires_grad=False)
    cache = install_prompt_embed_cache(pipeline)
    old = pipeline.encode_prompt("abc")[0]
    weight(pipeline).inner.add_(1)
    assert not torch.equal(pipeline.encode_prompt("abc")[0], old)
    pipeline.text_encoder.to(torch.float64)  # torch swaps wrappers, and refuses to if they have weak references
    assert pipeline.encode_prompt("abc")[0].dtype == torch.float64
    assert cache.misses == 3


def test_a_dropped_encoder_is_freed():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    gone = weakref.ref(pipeline.text_encoder)
    storage = weakref.ref(pipeline.text_encoder.out.weight)
    pipeline.text_encoder = None
    gc.collect()
    assert gone() is None
    assert storage() is None


def test_other_weights_at_the_address_of_freed_ones_are_noticed():
    pipeline, memory = Pipeline(), np.ones((4, 4), np.float32)  # as an allocator of an accelerator gives it out again
    cache = install_prompt_embed_cache(pipeline)
    for value in (1, 2):
        memory[:] = value
        weight(pipeline).data = torch.from_numpy(memory)
        for _ in range(2):
            assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])
    assert (cache.hits, cache.misses) == (2, 2)
