from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig
from diffusers.models.transformers.transformer_flux import FluxSingleTransformerBlock, FluxTransformerBlock

import omnireuse
from omnireuse_lab.compare.count import Work
from omnireuse_lab.compare.workload import Workload

KINDS = (FluxTransformerBlock, FluxSingleTransformerBlock)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the true forward of each kind of block ran: below whatever stands before an instance."""
    counts: Counter[str] = Counter()

    def counted(kind: type, inner: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(inner)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            counts[kind.__name__] += 1
            return inner(self, *args, **kwargs)

        return forward

    for kind in KINDS:
        monkeypatch.setattr(kind, "forward", counted(kind, kind.forward))
    return counts


def test_skipped_blocks_weigh_nothing_and_executed_ones_what_they_weigh(
    images: Callable[..., Workload], executed: Counter[str]
) -> None:
    workload = images()
    transformer = workload.pipeline.transformer
    work = Work(workload.pipeline)
    try:
        workload.pictures([0], 6)
        full, per_kind = work.flops, dict(executed)
        assert per_kind == {"FluxTransformerBlock": 2 * 2 * 6, "FluxSingleTransformerBlock": 4 * 2 * 6}
        # One block of each kind once more, to know what it weighs.
        weights = {}
        for kind, block in zip(
            KINDS, (transformer.transformer_blocks[0], transformer.single_transformer_blocks[0]), strict=True
        ):
            work.reset()
            with torch.no_grad():
                block(
                    hidden_states=torch.zeros(1, 64, 160),
                    encoder_hidden_states=torch.zeros(1, 20, 160),
                    temb=torch.zeros(1, 160),
                )
            weights[kind.__name__] = work.flops
        assert full == pytest.approx(sum(per_kind[name] * weight for name, weight in weights.items()), rel=0.02)
        executed.clear()
        work.reset()
        transformer.enable_cache(FirstBlockCacheConfig(threshold=0.5))
        try:
            workload.pictures([0], 6)
        finally:
            transformer.disable_cache()
        assert executed["FluxTransformerBlock"] < per_kind["FluxTransformerBlock"]
        assert work.flops == pytest.approx(sum(executed[name] * weights[name] for name in weights), rel=0.02)
    finally:
        work.close()
    assert "forward" not in vars(transformer)


@pytest.mark.parametrize("region", ["step", "call", "blocks"])
def test_our_own_schedule_counts_as_the_steps_it_computes(images: Callable[..., Workload], region: str) -> None:
    workload = images()
    work = Work(workload.pipeline)
    try:
        workload.pictures([0, 1], 6)
        full = work.flops
        work.reset()
        target = "residual" if region == "blocks" else "output"
        policy = omnireuse.Spread(num_computed=3)
        with omnireuse.enable(workload.pipeline, policy=policy, region=region, prediction_target=target):
            workload.pictures([0, 1], 6)
        assert work.flops / full == pytest.approx(3 / 6)
    finally:
        work.close()
