"""Denoising loops of SGLang that are made again, beside a measured one, for tuning to learn from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnireuse.engines.settings import KEY
from omnireuse.errors import UnsupportedModelError
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.schedulers import noise_levels
from omnireuse.pipelines.pictures import Picture
from omnireuse.planning.fit import WeightFit
from omnireuse.policies import Steps
from omnireuse.tuning.loops import Followed, Led, ShadowLoop
from omnireuse.tuning.shadows import FRAMES
from omnireuse.tuning.trials import MeasuredCall, Shadow

__all__ = ["LoopCall", "LoopShadows"]


@dataclass(frozen=True)
class LoopCall:
    """A denoising loop as it is before its first step, so that it can be made again.

    Attributes:
        original: `DenoisingStage._run_denoising_loop`.
        stage: SGLang's `DenoisingStage`.
        ctx: its `DenoisingContext`.
        batch: the request.
        server_args: of the server.
    """

    original: Callable[..., Any]
    stage: Any
    ctx: Any
    batch: Any
    server_args: Any

    def make(self, **kwargs: Any) -> Any:
        """Make the loop; its context has the latents then."""
        return self.original(self.stage, self.ctx, self.batch, self.server_args, **kwargs)

    def twin(self) -> LoopCall:
        """A copy that no loop of the other one changes; conditioning, which nobody writes to, is shared."""
        ctx, batch = self.ctx, copy.copy(self.batch)
        batch.sampling_params = copy.copy(batch.sampling_params)
        batch.extra = {name: value for name, value in self.batch.extra.items() if name != KEY}
        batch.metrics, batch.report_progress, batch.save_output = None, False, False
        return replace(
            self,
            ctx=replace(
                ctx,
                scheduler=copy.deepcopy(ctx.scheduler),
                latents=ctx.latents.clone(),
                extra_step_kwargs={name: _twin(each) for name, each in ctx.extra_step_kwargs.items()},
                extra=dict(ctx.extra),
                trajectory_timesteps=[],
                trajectory_latents=[],
                is_warmup=True,  # it is not logged and not profiled
            ),
            batch=batch,
        )

    def given(self, step: int) -> dict[str, Any]:
        """Arguments of the scheduler's step beside the output and the latents."""
        return {"timestep": self.ctx.timesteps[step], **self.ctx.extra_step_kwargs, "return_dict": False}


def _twin(value: Any) -> Any:
    if isinstance(value, list):
        return [_twin(each) for each in value]
    return value.clone_state() if isinstance(value, torch.Generator) else value


class LoopShadows:
    """Shadows of denoising loops, as `Shadows`. Each call's `replay` is its `LoopCall`."""

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Shadow:
        """As `Shadows.follow`."""
        levels = noise_levels(call.replay.ctx.scheduler)
        return self._made(call, lambda _: Followed(call.full, strategy, first_reused, levels))

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Shadow:
        """As `Shadows.lead`; the fit knows the steps of the policy."""
        return self._made(call, lambda again: Led(call.full, fit, again.ctx.scheduler, again.given))

    def arrive(self, call: MeasuredCall) -> Shadow:
        """As `Shadows.arrive`."""
        again = call.replay.twin()
        again.ctx.latents = call.full.final.to(again.ctx.latents.device)
        return Shadow(0, call.full.final, _decoded(again))

    def _made(self, call: MeasuredCall, make: Callable[[LoopCall], ShadowLoop]) -> Shadow:
        again = call.replay.twin()
        again.batch.extra[KEY] = run = make(again)
        latents = again.ctx.latents
        with torch.random.fork_rng(devices=[latents.device] if latents.device.type == "cuda" else []):
            again.make(collect_trajectory=False)
            return Shadow(run.computed, again.ctx.latents, _decoded(again))


def _decoded(call: LoopCall) -> list[Picture]:
    """The pictures of a loop that has ended.

    Raises:
        UnsupportedModelError: the pipeline decodes in a stage of its own.
    """
    pipeline = None if call.stage.pipeline is None else call.stage.pipeline()
    stages = [] if pipeline is None else pipeline.stages
    decoders = [each for each in stages if type(each).__name__ == "DecodingStage"]
    if len(decoders) != 1:
        raise UnsupportedModelError(f"{type(pipeline).__name__} decodes in a stage of its own")
    call.stage._finalize_denoising_loop(call.ctx, call.batch, call.server_args)
    made = decoders[0].forward(call.batch, call.server_args).output
    if not isinstance(made, torch.Tensor) or made.ndim not in (4, 5):
        raise UnsupportedModelError(f"{type(pipeline).__name__} does not decode to one tensor")
    frames = made.float().cpu() if made.ndim == 5 else made.float().cpu()[:, :, None]
    frames = frames[:, :, :: -(-frames.shape[2] // FRAMES)].permute(0, 2, 3, 4, 1)
    return [each[0].numpy() if len(each) == 1 else each.numpy() for each in frames]
