"""Outputs that are not one tensor, in SGLang's own loop: they reach the solver as they are."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from omnireuse import Strategy
from omnireuse.tuning.loops import RequestPlan
from omnireuse_engines.request import RequestReuse
from omnireuse_engines.sglang.loop import StageLoop, predicted_noise

STEPS = 6
OUTPUT = "frames", "sound"


@pytest.mark.parametrize("strategy", [None, Strategy.default(computed_steps=3)], ids=["off", "reuse"])
def test_reuse_ends_with_one_warning_if_there_was_any(
    strategy: Strategy | None, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler: Any = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS)
    latents = torch.zeros(1, 4)
    ctx = SimpleNamespace(scheduler=scheduler, timesteps=scheduler.timesteps, latents=latents, extra_step_kwargs={})

    def loop(stage: Any, ctx: Any, batch: Any, server_args: Any) -> list[Any]:
        step = {"batch": batch, "latents": latents, "current_model": None}
        return [
            predicted_noise(lambda *_, **__: OUTPUT, stage, timestep_index=number, **step) for number in range(STEPS)
        ]

    reuse, batch = RequestReuse(RequestPlan(strategy, "plan")), SimpleNamespace(extra={})
    with caplog.at_level(logging.WARNING, logger="omnireuse"):
        result = StageLoop(loop, SimpleNamespace(), ctx, batch, None).serve(reuse)
    assert not batch.extra
    assert result == [OUTPUT] * STEPS
    assert (reuse.computed, reuse.reused, reuse.failures) == (STEPS, 0, int(strategy is not None))
    assert sum("computes every further step" in each.getMessage() for each in caplog.records) == reuse.failures
