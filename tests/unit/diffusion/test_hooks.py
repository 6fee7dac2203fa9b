"""Reuse beside the hooks of accelerate and diffusers: offloading, casting, attention backends and caches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import diffusers
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from diffusers import FirstBlockCacheConfig
from diffusers.models import attention_dispatch
from packaging.version import Version

import omnireuse
from omnireuse import Steps
from tests.helpers.sweep import sweep
from tests.helpers.tiny import TINY, Tiny

REGIONS = ("step", "call", "blocks", "tail")
FORCED = {"policy": Steps(steps=(0, 1)), "forecaster": "hold"}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _attention_backend_of_the_process() -> Iterator[None]:
    # A model's backend becomes that of the process, and "_native_math" switches flags of torch that all threads share:
    # threads of later tests would differ in their last digits.
    with attention_dispatch.attention_backend(attention_dispatch.DIFFUSERS_ATTN_BACKEND):
        yield


def accelerate_hooks(tiny: Tiny) -> None:
    for module in (tiny.pipe.transformer, *tiny.pipe.transformer.transformer_blocks):
        add_hook_to_module(module, AlignDevicesHook(execution_device=CPU, io_same_device=True), append=True)


def group_offload(tiny: Tiny) -> None:
    if Version(diffusers.__version__) < Version("0.42") and not torch.accelerator.is_available():
        pytest.skip("this diffusers asks for an accelerator even where groups are loaded onto the CPU")
    tiny.pipe.transformer.enable_group_offload(CPU, CPU, offload_type="block_level", num_blocks_per_group=1)


def layerwise_casting(tiny: Tiny) -> None:
    tiny.pipe.transformer.enable_layerwise_casting(storage_dtype=torch.bfloat16, compute_dtype=torch.float32)


def attention_backend(tiny: Tiny) -> None:
    tiny.pipe.transformer.set_attention_backend("_native_math")


def first_block_cache(tiny: Tiny) -> None:
    tiny.pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.4))


# Given by name, the CPU is an execution device as any other. (Sequential offloading onto it fails inside accelerate.)
def model_offload(tiny: Tiny) -> None:
    tiny.pipe.enable_model_cpu_offload(device="cpu")


OFFLOADS = [model_offload, group_offload]
OTHERS = [accelerate_hooks, *OFFLOADS, layerwise_casting, attention_backend, first_block_cache]


def traces(tiny: Tiny) -> list[Any]:
    return [(type(each), sorted(vars(each)), vars(each).get("forward")) for each in tiny.pipe.transformer.modules()]


@pytest.mark.parametrize("region", sweep(REGIONS, quick=["step", "blocks"]))
@pytest.mark.parametrize("other", sweep(OTHERS, quick=[accelerate_hooks, group_offload, first_block_cache]))
def test_the_hooks_of_others_work_in_either_order(other: Callable[[Tiny], None], region: str) -> None:
    before, after, behind = TINY["flux"](), TINY["flux"](), TINY["flux"]()
    other(before)
    full = before.run()
    hooks = traces(before)
    with omnireuse.enable(before.pipe, policy="never", region=region):
        assert torch.equal(before.run(), full)
    with omnireuse.enable(before.pipe, **FORCED, region=region) as handle:
        reused = before.run()
        assert handle.summary().reused_calls > 0
        assert torch.isfinite(reused).all()
    # After each run a pipeline takes its offloading hooks off and puts new ones on.
    seen = slice(2) if other is model_offload else slice(3)
    assert [trace[seen] for trace in traces(before)] == [trace[seen] for trace in hooks]
    assert torch.equal(before.run(), full)

    with omnireuse.enable(after.pipe, policy="never", region=region):
        other(after)
        assert torch.equal(after.run(), full)
    assert torch.equal(after.run(), full)

    with omnireuse.enable(behind.pipe, **FORCED, region=region):
        other(behind)
        assert torch.equal(behind.run(), reused)
    assert [kind for kind, *_ in traces(behind)] == [kind for kind, *_ in hooks]
    assert torch.equal(behind.run(), full)


@pytest.mark.parametrize("region", sweep(["step", "blocks"], quick=["blocks"]))
@pytest.mark.parametrize("offload", sweep(OFFLOADS, quick=[group_offload]))
def test_offloading_casting_and_backend_in_any_order_of_enabling(offload: Callable[[Tiny], None], region: str) -> None:
    plain = TINY["flux"]()
    others = [layerwise_casting, attention_backend, offload]
    for other in others:
        other(plain)
    full = plain.run(steps=4)
    with omnireuse.enable(plain.pipe, **FORCED, region=region):
        reused = plain.run(steps=4)
    assert not torch.equal(reused, full)
    for place, order in itertools.product(range(4), (others, others[::-1])):
        tiny = TINY["flux"]()
        for other in order[:place]:
            other(tiny)
        with omnireuse.enable(tiny.pipe, **FORCED, region=region) as handle:
            for other in order[place:]:
                other(tiny)
            assert torch.equal(tiny.run(steps=4), reused)
        assert handle.summary().reused_calls > 0
        assert torch.equal(tiny.run(steps=4), full)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="weights that leave a device need one")
@pytest.mark.parametrize("offload", ["enable_model_cpu_offload", "enable_sequential_cpu_offload"])
@pytest.mark.parametrize("region", REGIONS)
def test_offloading_of_the_pipeline(flux: Tiny, offload: str, region: str) -> None:
    getattr(flux.pipe, offload)()
    full = flux.run()
    with omnireuse.enable(flux.pipe, policy="never", region=region):
        assert torch.equal(flux.run(), full)
    with omnireuse.enable(flux.pipe, **FORCED, region=region) as handle:
        assert torch.isfinite(flux.run()).all()
        assert handle.summary().reused_calls > 0
    assert torch.equal(flux.run(), full)
