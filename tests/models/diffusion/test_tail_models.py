"""Every declared model in region `tail`: exact where it computes, and on the same input also where it reuses."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import omnireuse
from omnireuse import ResidualDiff, Steps
from omnireuse.arguments.targets import strategy_of
from omnireuse.errors import ConfigError
from omnireuse.loop.strategy import Strategy
from omnireuse.models import BLOCK_STACKS
from tests.helpers.sweep import sweep
from tests.models.diffusion.denoisers import DENOISERS

from .test_models import QUICK, STEPS, Pipeline, equal

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
    pytest.mark.filterwarnings("ignore:In CPU autocast, but the target dtype:UserWarning"),
]


@pytest.mark.parametrize("name", sweep(sorted(DENOISERS), quick=QUICK & DENOISERS.keys()))
def test_every_declared_model_is_served_at_any_split(name: str) -> None:
    pipeline = Pipeline(DENOISERS[name]())
    stack = BLOCK_STACKS[name]
    count = sum(block.bypass is None for block in stack.blocks_of(pipeline.transformer))
    plain, repeated = pipeline.run(), pipeline.run((0, 1, 1, 3))
    for first, last in ((1, 0), (1, 1), (count - 1, 0), (0, 1)):
        if first + last >= count or (stack.has_long_skips and last > first):
            continue
        splits = {"region": "tail", "first_blocks": first, "last_blocks": last}
        never = ResidualDiff(residual_diff_threshold=1e-9) if first else "never"
        with omnireuse.enable(pipeline, strategy_of(policy=never, **splits)) as handle:
            assert equal(pipeline.run(), plain)
        assert handle.summary().computed_calls == 2 * STEPS
        drifts = [event.drift for event in handle.events if event.step]
        assert all(drift is not None and 0 < drift < float("inf") for drift in drifts) == bool(first)
        with omnireuse.enable(pipeline, Strategy(policy=Steps(steps=(0, 1, 3)), **splits)) as handle:
            reusing = pipeline.run((0, 1, 1, 3))
        assert handle.summary().reused_calls == 2
        for ours, theirs in zip(pytree.tree_leaves(reusing), pytree.tree_leaves(repeated), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_last_blocks_that_would_read_skipped_ones_are_refused() -> None:
    pipeline = Pipeline(DENOISERS["HunyuanDiT2DModel"]())
    with pytest.raises(ConfigError, match="together they must be no more last blocks than first ones"):
        omnireuse.enable(pipeline, strategy_of(policy="fixed", region="tail", first_blocks=1, last_blocks=2))
