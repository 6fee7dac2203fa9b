"""Install and uninstall as specified: what a call gives through the cache, and what is left of it afterwards."""

import copy
import gc
import inspect

import pytest
import torch
from torch.nn.modules import module as registration

import omnireuse
from omnireuse.diffusion.cache.prompt_embed_cache import (
    bump_epoch,
    install_prompt_embed_cache,
    uninstall_prompt_embed_cache,
)
from omnireuse.errors import StateError, UnsupportedModelError, WrongTypeError

from .conftest import Pipeline


def test_what_the_first_caller_does_to_its_result_stays_its_own():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    first = pipeline.encode_prompt("p")[0]
    want = first.clone()
    first.zero_()
    assert torch.equal(pipeline.encode_prompt("p")[0], want)


def test_uninstall_leaves_nothing_behind():
    gc.collect()  # caches of other tests take their hooks with them when they are collected, at any time
    pipeline = Pipeline()
    before = dict(vars(pipeline))
    hooks = registration._global_module_registration_hooks
    num_hooks = len(hooks)
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p")
    pipeline.num_encodes = 0
    pipeline.prompts.clear()
    assert uninstall_prompt_embed_cache(pipeline) is True
    assert vars(pipeline) == before
    assert pipeline.encode_prompt == Pipeline.encode_prompt.__get__(pipeline)
    assert uninstall_prompt_embed_cache(pipeline) is False
    assert len(hooks) == num_hooks


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


def test_an_object_that_takes_no_attribute_is_named():
    class Closed:
        __slots__ = ()

        def encode_prompt(self, prompt):
            return prompt

    with pytest.raises(UnsupportedModelError, match="Closed"):
        install_prompt_embed_cache(Closed())


def test_a_freed_pipeline_is_freed():
    import weakref

    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p")
    gone, encoder = weakref.ref(pipeline), weakref.ref(pipeline.text_encoder)
    del pipeline
    assert gone() is None
    assert encoder() is None


def test_a_cache_that_is_kept_keeps_no_model():
    import weakref

    pipeline = Pipeline()
    pipeline.text_encoder.out.forward = pipeline.text_encoder.out.forward  # refers to itself, as offloading makes it
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("p")
    encoder = weakref.ref(pipeline.text_encoder)
    del pipeline
    gc.collect()
    assert encoder() is None
    assert len(cache.store) == 1


@pytest.mark.parametrize("kind", ["set", "object"])
def test_any_returned_value_is_served_again(kind):
    class Plain(Pipeline):
        def encode_prompt(self, prompt):
            self.num_encodes += 1
            return {prompt} if kind == "set" else Box(prompt)

    class Box:
        def __init__(self, content):
            self.content = content

    pipeline = Plain()
    cache = install_prompt_embed_cache(pipeline)
    first, second = pipeline.encode_prompt("a"), pipeline.encode_prompt("a")
    assert (pipeline.num_encodes, cache.hits, cache.bypassed) == (1, 1, 0)
    assert second == {"a"} if kind == "set" else second is first


def test_bump_without_a_cache_says_what_to_do():
    with pytest.raises(StateError, match="install_prompt_embed_cache"):
        bump_epoch(Pipeline())


def test_the_wrapper_looks_like_the_function():
    pipeline = Pipeline()
    install_prompt_embed_cache(pipeline)
    assert inspect.signature(pipeline.encode_prompt) == inspect.signature(Pipeline().encode_prompt)
    assert pipeline.encode_prompt.__name__ == "encode_prompt"
    assert pipeline.encode_prompt.__doc__ == "Encode."
    assert pipeline.encode_prompt.__self__ is pipeline


def test_what_was_assigned_to_the_cache_counts_as_installed(caplog):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline, max_size=8)
    cache.max_size, cache.enabled = 4, False
    assert install_prompt_embed_cache(pipeline, max_size=4, enabled=False) is cache
    assert not caplog.text
    install_prompt_embed_cache(pipeline, max_size=8, enabled=False)
    assert "max_size=8 (installed: 4)" in caplog.text
    assert copy.deepcopy(pipeline).encode_prompt.cache.max_size == 4


def test_none_is_no_pipeline():
    with pytest.raises(WrongTypeError, match="pipeline=None"):
        omnireuse.install_prompt_embed_cache(None)
