"""With reuse off, forced to compute, or removed, outputs are bit-equal to the untouched pipeline."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import EveryNth
from tests.helpers.tiny import TINY, Tiny

COMPUTING = {
    "never": {"policy": "never"},
    "every step": {"policy": EveryNth(every=1), "forecaster": "blend"},
    "threshold 0+": {"policy": omnireuse.TeaCache(rel_l1_thresh=1e-12), "forecaster": "polynomial"},
}


def regions_of(tiny: Tiny) -> list[str]:
    return ["step", "call"] + (["blocks"] if hasattr(tiny.pipe, "transformer") else [])


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("kind", sorted(COMPUTING))
def test_computing_everything_is_bit_equal(tiny: Tiny, kind: str, guided: bool) -> None:
    full = tiny.run(guided=guided)
    for region in regions_of(tiny):
        with omnireuse.enable(tiny.pipe, region=region, **COMPUTING[kind]) as handle:
            assert torch.equal(tiny.run(guided=guided), full)
        assert handle.summary().computed_calls > 0
        assert handle.summary().reused_calls == 0


def test_disabling_restores_the_untouched_pipeline(tiny: Tiny) -> None:
    full = tiny.run()
    parts = [
        tiny.pipe,
        tiny.pipe.scheduler,
        *(m for m in tiny.pipe.components.values() if isinstance(m, torch.nn.Module)),
    ]
    modules = [module for part in parts if isinstance(part, torch.nn.Module) for module in part.modules()]
    before = [(type(each), set(vars(each))) for each in (*parts, *modules)]
    bound = (tiny.pipe.scheduler.step, tiny.pipe.scheduler.set_timesteps)
    for region in regions_of(tiny):
        handle = omnireuse.enable(tiny.pipe, policy="fixed", region=region)
        assert not torch.equal(tiny.run(), full)
        handle.disable()
        handle.disable()
        assert [(type(each), set(vars(each))) for each in (*parts, *modules)] == before
        assert (tiny.pipe.scheduler.step, tiny.pipe.scheduler.set_timesteps) == bound
        assert torch.equal(tiny.run(), full)


def test_reuse_is_repeatable(tiny: Tiny) -> None:
    with omnireuse.enable(tiny.pipe, speedup=2):
        assert torch.equal(tiny.run(), tiny.run())


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pipe: pickle.loads(pickle.dumps(pipe))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_an_enabled_pipeline_is_a_plain_pipeline(flux: Tiny, copier: Any) -> None:
    full = flux.run()
    with omnireuse.enable(flux.pipe, policy="fixed", region="blocks") as handle:
        reused = flux.run()
        twin = Tiny(copier(flux.pipe), flux.inputs)
        decisions = handle.summary().calls
        assert torch.equal(twin.run(), full)
        assert type(twin.pipe) is type(TINY["flux"]().pipe)
        assert handle.summary().calls == decisions
        assert torch.equal(flux.run(), reused)
