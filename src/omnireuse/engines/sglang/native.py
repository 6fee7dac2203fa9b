"""SGLang's own pipelines: a request's steps are computed or forecast after guidance, in SGLang's denoising loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from omnireuse.engines.request import RequestReuse
from omnireuse.engines.settings import KEY, RequestPlan
from omnireuse.engines.sglang.measuring import LoopRun
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.generation import Generation, layout_of
from omnireuse.noise.schedulers import noise_levels

__all__ = ["denoising_loop", "predicted_noise"]

logger = logging.getLogger("omnireuse")


def denoising_loop(
    original: Callable[..., Any], plan: RequestPlan, stage: Any, ctx: Any, batch: Any, server_args: Any, **kwargs: Any
) -> tuple[Any, RequestReuse]:
    """Run SGLang's loop with reuse. The state of the request ends with the loop, also where the loop raises.

    Args:
        original: `DenoisingStage._run_denoising_loop`.
        batch: the request; its `extra` keeps the state.

    Returns:
        The loop's result, and the reuse.
    """
    reuse = RequestReuse(plan, _start(plan, ctx))
    batch.extra[KEY] = reuse
    try:
        result = original(stage, ctx, batch, server_args, **kwargs)
    finally:
        batch.extra.pop(KEY, None)
        if reuse.generation is not None:
            reuse.generation.finish()
    return result, reuse


def predicted_noise(
    original: Callable[..., Any],
    stage: Any,
    *,
    batch: Any,
    timestep_index: int,
    latents: torch.Tensor,
    current_model: Any,
    **kwargs: Any,
) -> Any:
    """The scheduler's input at one step: computed by every branch of guidance, or forecast.

    Args:
        original: `DenoisingStage._predict_noise_with_cfg`, which combines the branches.
        timestep_index: the step, from 0.
        latents: that the scheduler starts this step from, shape (B, …).
        current_model: the transformer of this step; some models have one for early and one for late steps.

    Returns:
        The guided output, of the shape of the latents.
    """
    kwargs |= {"batch": batch, "timestep_index": timestep_index, "latents": latents, "current_model": current_model}
    # Another expert makes another output: those of the one before it are of another kind.
    is_first = current_model is getattr(stage, "transformer", current_model)
    reuse: RequestReuse | LoopRun | None = batch.extra.get(KEY)
    if isinstance(reuse, LoopRun):
        return reuse.step(lambda: original(stage, **kwargs), timestep_index, latents, denoiser=0 if is_first else 1)
    if reuse is None or (generation := reuse.generation) is None:
        return original(stage, **kwargs)
    if generation.index != timestep_index:
        reuse.generation = None
        _warn(stage, f"predicts step {timestep_index} where step {generation.index} is due")
        return original(stage, **kwargs)
    choice = generation.decide(layout=(is_first, layout_of(latents)))
    if choice.reuse:
        output = generation.predict(choice, latents)
        reuse.reused += 1
    else:
        computed = original(stage, **kwargs)
        if not isinstance(computed, torch.Tensor):
            reuse.generation = None
            _warn(stage, f"predicts {type(computed).__name__} and not one tensor")
            return computed
        output = generation.observe(choice, computed, latents)
        reuse.computed += 1
    generation.advance()
    return output


def _start(plan: RequestPlan, ctx: Any) -> Generation:
    assert plan.strategy is not None
    total, scheduler = len(ctx.timesteps), ctx.scheduler
    # A loop that runs a part of the schedule has noise of its own: without levels, steps are counted instead.
    is_whole = len(getattr(scheduler, "timesteps", ())) == total
    levels = noise_levels(scheduler) if is_whole else ()
    return Generation(plan.strategy, levels, total=total, agreement=Agreement(plan.group))


def _warn(stage: Any, why: str) -> None:
    logger.warning("%s %s: the other steps of this request are computed", type(stage).__name__, why)
