"""SGLang's own pipelines: a request's steps are computed or forecast after guidance, in SGLang's denoising loop.

An error of reuse does not fail a request: it computes every further step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from omnireuse.engines.request import RequestReuse, warn_of
from omnireuse.engines.settings import KEY, RequestPlan
from omnireuse.errors import StateError
from omnireuse.loop.events import Choice
from omnireuse.loop.generation import layout_of
from omnireuse.tuning.loops import LoopRun

__all__ = ["denoising_loop", "predicted_noise"]


def denoising_loop(
    original: Callable[..., Any], plan: RequestPlan, stage: Any, ctx: Any, batch: Any, server_args: Any, **kwargs: Any
) -> tuple[Any, RequestReuse]:
    """Run SGLang's loop with reuse. The state of the request ends with the loop, also if the loop raises.

    Args:
        original: `DenoisingStage._run_denoising_loop`.
        batch: the request; its `extra` keeps the state.

    Returns:
        The loop's result, and the reuse.
    """
    batch.extra[KEY] = reuse = RequestReuse(plan, getattr(batch, "request_id", None))
    total = len(ctx.timesteps)
    try:
        warn_of(plan, total)
        reuse.start(ctx.scheduler, total)
    except Exception as error:  # of reuse: the request goes on
        reuse.give_up("the start of a run", error)
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
    if reuse is None:
        return original(stage, **kwargs)
    choice, output = _forecast(reuse, timestep_index, latents, (is_first, layout_of(latents)))
    if output is None:
        output = original(stage, **kwargs)
        reuse.computed += 1
    else:
        reuse.reused += 1
    if choice is None or (generation := reuse.generation) is None:
        return output
    try:
        if not choice.reuse:
            if not isinstance(output, torch.Tensor):
                raise StateError(f"{type(stage).__name__} predicts {type(output).__name__} and not one tensor")
            output = generation.observe(choice, output, latents)
        generation.advance()
    except Exception as error:  # of reuse: the request goes on
        reuse.give_up("the end of a step", error)
    return output


def _forecast(
    reuse: RequestReuse, step: int, latents: torch.Tensor, layout: tuple[Any, ...]
) -> tuple[Choice | None, torch.Tensor | None]:
    """The decision on a step, and the forecast output if it is reused; None for a request without reuse."""
    generation = reuse.generation
    if generation is None:
        return None, None
    try:
        if generation.index != step:
            raise StateError(f"step {step} is predicted although step {generation.index} is due")
        choice = generation.decide(layout=layout)
        return choice, generation.predict(choice, latents) if choice.reuse else None
    except Exception as error:  # of reuse: the request goes on
        reuse.give_up("the decision on a step", error)
        return None, None
