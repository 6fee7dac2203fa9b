"""Weights that live on the host and move to an accelerator for a call. The accelerator has shapes and no data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, cpu_offload_with_hook
from torch.utils._python_dispatch import TorchDispatchMode

import omnireuse
from bench._fake_device import FakeSampler, HostReads, fake_device
from bench._true_size import MODELS
from omnireuse import Steps
from tests.helpers.sweep import sweep

CPU, STEPS = torch.device("cpu"), 4
REUSED = {"policy": Steps(steps=(0, 1, 3)), "forecaster": "hold"}


def model_offload(sampler: FakeSampler) -> None:
    sampler.transformer, _ = cpu_offload_with_hook(sampler.transformer, sampler.device)


def sequential_offload(sampler: FakeSampler) -> None:
    cpu_offload(sampler.transformer, sampler.device)


def group_offload(sampler: FakeSampler) -> None:
    sampler.transformer.enable_group_offload(sampler.device, CPU, offload_type="block_level", num_blocks_per_group=1)


def leaf_offload(sampler: FakeSampler) -> None:
    sampler.transformer.enable_group_offload(sampler.device, CPU, offload_type="leaf_level")


class Loads(TorchDispatchMode):
    """Counts copies from the host to the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "_to_copy" and args[0].device == CPU != result.device:
            self.count += 1
        return result


def run(sampler: FakeSampler, steps: int = STEPS, **reuse: Any) -> tuple[int, int]:
    """Copies to the device and reads of it in a run."""
    loads, reads = Loads(), HostReads()
    with omnireuse.enable(sampler, **reuse) as handle, loads, reads:
        assert sampler.run(steps, lambda _: nullcontext()).device == sampler.device
    assert (handle.summary().reused_calls > 0) == ("forecaster" in reuse)
    return loads.count, reads.count


# Each way with a region of the whole model and with one of its blocks.
@pytest.mark.parametrize(
    ("offload", "region"),
    sweep(
        [
            *((sequential_offload, region) for region in ("step", "tail")),
            *((group_offload, region) for region in ("step", "call", "blocks", "tail")),
            *((leaf_offload, region) for region in ("call", "blocks")),
        ],
        quick=[(sequential_offload, "step"), (group_offload, "blocks")],
    ),
)
def test_a_forecast_step_moves_no_weights(offload: Callable[[FakeSampler], None], region: str) -> None:
    with fake_device() as device:
        sampler = FakeSampler(MODELS["flux.1"], tiny=True, device=device, dtype=torch.float32)
        sampler.transformer.to(CPU)
        offload(sampler)
        home = {each.device for each in sampler.transformer.parameters()}
        assert device not in home
        step, _ = run(sampler, 1, policy="never", region=region)
        reused, _ = run(sampler, **REUSED, region=region)
        assert {each.device for each in sampler.transformer.parameters()} == home
    least, full = 3 * step, STEPS * step
    assert reused == least if region in ("step", "call") else least < reused < full
