"""SGLang's own pipelines: a request's steps are computed or forecast after guidance, in SGLang's denoising loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from omnireuse.engines.request import RequestReuse, warn_of
from omnireuse.engines.settings import KEY, RequestPlan
from omnireuse.loop.stepper import NOTHING, Stepper, stepped

__all__ = ["Driven", "denoising_loop", "predicted_noise"]


def _nothing(step: int) -> Mapping[str, Any]:
    return NOTHING


class Driven(NamedTuple):
    """What drives the steps of a request, in its `extra`.

    Attributes:
        stepper: decides.
        given: arguments of the scheduler's step beside the output and the latents, by the step, if somebody asks.
    """

    stepper: Stepper
    given: Callable[[int], Mapping[str, Any]] = _nothing


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
    reuse, total = RequestReuse(plan, getattr(batch, "request_id", None)), len(ctx.timesteps)
    batch.extra[KEY] = Driven(reuse)
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
    driven: Driven | None = batch.extra.get(KEY)
    if driven is None:
        return original(stage, **kwargs)
    # Another expert makes another output: those of the one before it are of another kind.
    kind = int(current_model is not getattr(stage, "transformer", current_model))
    given = driven.given(timestep_index)
    return stepped(driven.stepper, lambda: original(stage, **kwargs), timestep_index, latents, kind=kind, given=given)
