"""How changes of weights are noticed: by version counters where there are any, and inside wrappers."""

import gc
import weakref

import torch
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache

from .conftest import Pipeline
from .test_never_stale import direct, load_state, weight


def test_versions_are_compared_of_parameters_and_buffers():
    pipeline = Pipeline()
    pipeline.text_encoder.register_buffer("counts", torch.zeros(2, dtype=torch.int64))
    pipeline.text_encoder.out.bias.data = torch.zeros(4)
    cache = install_prompt_embed_cache(pipeline)
    for changed in (pipeline.text_encoder.out.bias, pipeline.text_encoder.counts):
        pipeline.encode_prompt("abc")
        misses = cache.misses
        pipeline.encode_prompt("abc")
        assert cache.misses == misses
        with torch.inference_mode():
            changed.add_(1)
        assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])
        assert cache.misses == misses + 1


def test_encoders_in_a_list_or_behind_another_object_are_watched():
    class Holder:
        def __init__(self, encoder):
            self.model = encoder

    class Held(Pipeline):
        def __init__(self):
            super().__init__()
            self.held, self.all = Holder(self.text_encoder), [self.text_encoder]

        def encode_prompt(self, prompt, which):
            return (self.held.model if which == "held" else self.all[0])(prompt).detach()

    pipeline = Held()
    install_prompt_embed_cache(pipeline)
    for which in ("held", "all"):
        pipeline.encode_prompt("abc", which)
        with torch.no_grad():
            weight(pipeline).add_(1)
        assert torch.equal(pipeline.encode_prompt("abc", which), direct(pipeline, "abc", which))


def test_weights_without_versions_bypass_and_are_reported_once(caplog):
    with torch.inference_mode():
        pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("abc")
    pipeline.encode_prompt("abd")
    assert (cache.bypassed_by["uncounted"], len(cache.store)) == (2, 0)
    assert caplog.text.count("(uncounted): text_encoder.table.weight") == 1


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


def test_modules_that_are_moved_by_swapping_can_be():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        pipeline = Pipeline()
        cache = install_prompt_embed_cache(pipeline)
        old = pipeline.encode_prompt("abc")[0]
        pipeline.text_encoder.to(torch.float64)
        assert pipeline.encode_prompt("abc")[0].dtype != old.dtype
        load_state(pipeline)
        assert torch.equal(pipeline.encode_prompt("abc")[0], direct(pipeline, "abc")[0])
        pipeline.encode_prompt("abc")
        assert (cache.hits, cache.misses) == (1, 3)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


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
