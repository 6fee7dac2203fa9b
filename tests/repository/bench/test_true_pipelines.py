"""Whole diffusers pipelines of true width on a device without data: from a prompt to latents or a picture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from bench._fake_device import HostReads, fake_device
from bench._true_pipelines import PIPELINES
from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),  # the prompt cache notes addresses
]
STEPS = 6


@contextmanager
def made(name: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    with fake_device() as device, torch.no_grad():
        yield PIPELINES[name](device)


def run(pipe: Any, call: dict[str, Any], output: str = "latent") -> HostReads:
    with HostReads() as reads:
        (result,) = pipe("a cat", num_inference_steps=STEPS, output_type=output, return_dict=False, **call)
    assert result.device == pipe._execution_device
    return reads


def test_a_cached_prompt_takes_no_operation_and_a_picture_no_read() -> None:
    with made("flux.1") as (pipe, call):
        cache = install_prompt_embed_cache(pipe)
        assert cache is not None
        run(pipe, call, "pt")
        assert run(pipe, call, "pt").count == 0
        assert (cache.misses, cache.hits, cache.bypassed) == (1, 1, 0)
        with HostReads() as hit:
            pipe.encode_prompt("a cat", None)
        assert (cache.hits, hit.operations) == (2, 0)
