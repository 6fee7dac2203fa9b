"""SGLang's own pipelines: a request's denoising loop, whose steps are computed or forecast after guidance."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from omnireuse.errors import NotTunableError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.stepper import Stepper, stepped
from omnireuse.profiles.conditions import watch_of
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.loops import RepeatableLoop
from omnireuse.tuning.trials import Pausing
from omnireuse_engines.host import Original
from omnireuse_engines.request import RequestReuse, run_start
from omnireuse_engines.settings import KEY

__all__ = ["StageLoop", "predicted_noise"]

SAFE = ("DenoisingStage",)
"""Stages whose loop keeps nothing but what its context holds, so that it can be made again."""
FORM = ("negative_prompt", "num_outputs_per_prompt", "condition_inputs", "diffusers_kwargs", "num_inference_steps")
"""Fields of a request beside those that SGLang itself leaves out of a batch's signature: for contents and number."""
FORMS = ("output", "return_", "save_")
"""Beginnings of fields for the form of pictures."""


@dataclasses.dataclass(frozen=True)
class StageLoop(RepeatableLoop):
    """The denoising loop of a request.

    Attributes:
        original: `DenoisingStage._run_denoising_loop`.
        stage: SGLang's `DenoisingStage`.
        ctx: its `DenoisingContext`, which has the final latents after the loop.
        batch: the request.
        server_args: of the server.
    """

    original: Original
    stage: Any
    ctx: Any
    batch: Any
    server_args: Any

    @property
    def start(self) -> RunStart:
        return run_start(self.ctx.scheduler, len(self.ctx.timesteps), self.ctx.latents)

    def serve(self, request: RequestReuse, **kwargs: object) -> Any:
        """Make the loop of a request; return SGLang's result. The state of the request ends with it, also if it raises.

        The latents are the last that a measured request is told.
        """
        with request.running(self.ctx.scheduler, len(self.ctx.timesteps)):
            result = self._driven(request, **kwargs)
            request.arrived(self.ctx.latents)
        return result

    def run(self, stepper: Stepper, host: object) -> Pausing[torch.Tensor]:
        self._driven(stepper, collect_trajectory=False)
        yield
        latents: torch.Tensor = self.ctx.latents
        return latents

    def _driven(self, stepper: Stepper, **kwargs: object) -> Any:
        def steps(compute: Callable[[], Any], step: int, latents: torch.Tensor, denoiser: int) -> Any:
            return stepped(stepper, compute, step, latents, kind=denoiser, given=self.given(step))

        self.batch.extra[KEY] = steps
        try:
            return self.original(self.stage, self.ctx, self.batch, self.server_args, **kwargs)
        finally:
            self.batch.extra.pop(KEY, None)

    def twin(self) -> StageLoop:
        """A copy that no loop of the other one changes; conditioning, which nobody writes to, is shared."""
        ctx, batch = self.ctx, copy.copy(self.batch)
        batch.sampling_params = copy.copy(batch.sampling_params)
        batch.extra = {name: value for name, value in self.batch.extra.items() if name != KEY}
        batch.metrics, batch.report_progress, batch.save_output = None, False, False
        again = dataclasses.replace(
            ctx,
            scheduler=copy.deepcopy(ctx.scheduler),
            latents=ctx.latents.clone(),
            extra_step_kwargs={name: _twin(each) for name, each in ctx.extra_step_kwargs.items()},
            extra=dict(ctx.extra),
            trajectory_timesteps=[],
            trajectory_latents=[],
            is_warmup=True,  # it is not logged and not profiled
        )
        return dataclasses.replace(self, ctx=again, batch=batch)

    def given(self, step: int) -> dict[str, Any]:
        return {"timestep": self.ctx.timesteps[step], **self.ctx.extra_step_kwargs, "return_dict": False}

    def check(self) -> None:
        if type(self.stage).__name__ not in SAFE:
            raise NotTunableError(
                f"{type(self.stage).__name__} may keep more than its context, so its loop is not made again"
            )
        if dist.is_initialized() and dist.get_world_size() > 1:
            raise NotTunableError("SGLang's own pipelines are tuned on one rank alone")
        if self.ctx.reserved_frames_mask is not None or self.ctx.z is not None:
            raise NotTunableError("loops that change their latents after the scheduler's step are not tuned")
        if self.batch.sampling_params.rollout:
            raise NotTunableError("rollouts are not tuned")
        if any("WithLoRA" in type(each).__name__ for each in self.stage.transformer.modules()):
            raise NotTunableError("LoRA adapters of SGLang cannot be told apart")

    def configuration(self, start: RunStart) -> Configuration:
        """By the weights and all fields of the request that reach the loop."""
        return Configuration(
            pipeline=f"SGLang: {type(self.server_args.pipeline_config).__name__}",
            conditions=watch_of(self.stage).now(),
            scheduler=type(start.scheduler).__name__,
            noises=tuple(round(level.coordinate, 4) for level in start.levels),
            call=self._arguments(),
            shape=start.shape[1:],
        )

    def _arguments(self) -> dict[str, str]:
        """Arguments of the request but contents, number and form, as text by name."""
        params, ctx = self.batch.sampling_params, self.ctx
        found = {
            field.name: repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__
            for field in dataclasses.fields(params)
            if not field.metadata.get("batch_sig_exclude")
            and field.name not in FORM
            and not field.name.startswith(FORMS)
            for value in (getattr(params, field.name),)
        }
        return found | {
            "branches": "unknown" if ctx.cfg_policy is None else str(len(ctx.cfg_policy.branches)),
            "computed in": str(ctx.target_dtype),
            "image": str(self.batch.image_latent is not None),
        }


def _twin(value: object) -> Any:
    if isinstance(value, list):
        return [_twin(each) for each in value]
    return value.clone_state() if isinstance(value, torch.Generator) else value


def predicted_noise(
    original: Original,
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
    drive = batch.extra.get(KEY)
    if drive is None:
        return original(stage, **kwargs)
    # Another expert makes another output: those of the one before it are of another kind.
    denoiser = int(current_model is not getattr(stage, "transformer", current_model))
    return drive(lambda: original(stage, **kwargs), timestep_index, latents, denoiser)
