"""A consumer that changes a hit in place is found out, and nobody is served what it left."""

import logging

import pytest
import torch

from omnireuse.diffusion.cache.prompt_embed_cache import PromptCacheOptions, install_prompt_embed_cache

from .conftest import Pipeline


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_change_in_place_is_told_and_encoded_again(caplog, mode):
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline)
    with mode():
        want = pipeline.encode_prompt("abc")[0].clone()
        pipeline.encode_prompt("abc")[0].mul_(0)
        with caplog.at_level(logging.WARNING):
            assert torch.equal(pipeline.encode_prompt("abc")[0], want)
    assert "changed in place after it was stored" in caplog.text
    assert "'abc'" in caplog.text
    assert "tensor 0 (1, 6, 4)" in caplog.text
    assert cache.details()["mutated"] == 1
    assert cache.misses == 2


def test_copies_may_be_changed():
    pipeline = Pipeline()
    cache = install_prompt_embed_cache(pipeline, options=PromptCacheOptions(copy_on_hit=True))
    want = pipeline.encode_prompt("abc")[0].clone()
    for _ in range(3):
        got = pipeline.encode_prompt("abc")[0]
        assert torch.equal(got, want)
        got.data.zero_()
    assert (cache.hits, cache.details()["mutated"]) == (3, 0)
