"""Tuning of SGLang's own pipelines."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from omnireuse.engines.loops import Loop, LoopShadows, LoopTuner
from omnireuse.engines.request import levels_of, tuning_figures
from omnireuse.engines.settings import KEY, RequestPlan
from omnireuse.engines.sglang.native import Driven
from omnireuse.errors import NotTunableError
from omnireuse.hooks.run import RunStart
from omnireuse.profiles.conditions import watch_of
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entry import Entry
from omnireuse.tuning.registry import PlanRegistry
from omnireuse.tuning.replay import unchanged_random_states
from omnireuse.tuning.shadows import Beside
from omnireuse.tuning.store import Store
from omnireuse.tuning.trials import Pausing

__all__ = ["RequestTuner", "StageLoop"]

SAFE = ("DenoisingStage",)
"""Stages whose loop keeps nothing but what its context holds, so that it can be made again."""
FORM = ("negative_prompt", "num_outputs_per_prompt", "condition_inputs", "diffusers_kwargs", "num_inference_steps")
"""Fields of a request beside those that SGLang itself leaves out of a batch's signature: for contents and number."""
FORMS = ("output", "return_", "save_")
"""Beginnings of fields for the form of pictures."""


@dataclasses.dataclass(frozen=True)
class StageLoop(Loop):
    """The denoising loop of a request.

    Attributes:
        original: `DenoisingStage._run_denoising_loop`.
        stage: SGLang's `DenoisingStage`.
        ctx: its `DenoisingContext`, which has the final latents after the loop.
        batch: the request.
        server_args: of the server.
    """

    original: Callable[..., Any]
    stage: Any
    ctx: Any
    batch: Any
    server_args: Any

    @property
    def start(self) -> RunStart:
        scheduler, total = self.ctx.scheduler, len(self.ctx.timesteps)
        levels = levels_of(scheduler, total)
        return RunStart(total=total, levels=levels, scheduler=scheduler, shape=tuple(self.ctx.latents.shape))

    def make(self, **kwargs: Any) -> Any:
        """Make the loop."""
        return self.original(self.stage, self.ctx, self.batch, self.server_args, **kwargs)

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
        """Arguments of the scheduler's step beside the output and the latents."""
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


def _twin(value: Any) -> Any:
    if isinstance(value, list):
        return [_twin(each) for each in value]
    return value.clone_state() if isinstance(value, torch.Generator) else value


class RequestTuner(LoopTuner):
    """Chooses what each request of one process follows.

    Args:
        pictures: how many are measured at most, ≥ 1.
    """

    def __init__(self, pictures: int) -> None:
        super().__init__(PlanRegistry(pictures=pictures, store=Store(), command="SGLang with omnireuse"))

    def begin(self, plan: RequestPlan, loop: StageLoop) -> tuple[RequestPlan, Entry | None]:
        """Choose the plan of a request that begins, and whether it is measured."""
        return self.choose(plan, loop, _go_on)

    def serve_measured(self, entry: Entry, loop: StageLoop, **kwargs: Any) -> tuple[Any, dict[str, float]]:
        """Make a loop that is measured, and the shadows that are due after it.

        Returns:
            The loop's result, and figures for the response.
        """
        again, run = loop.twin(), loop.recording()

        def proceed() -> Any:
            loop.batch.extra[KEY] = Driven(run, loop.given)
            try:
                result = loop.make(**kwargs)
                run.arrived(loop.ctx.latents)
                return result
            finally:
                loop.batch.extra.pop(KEY, None)

        result = self.measure(entry, again, run, proceed, _go_on)
        return result, tuning_figures(False, entry.tuning)


def _go_on(entry: Entry) -> None:
    entry.go_on(LoopShadows(_made_again))


def _made_again(loop: StageLoop, run: Beside) -> Pausing[torch.Tensor]:
    loop.batch.extra[KEY] = Driven(run, loop.given)
    with unchanged_random_states():
        loop.make(collect_trajectory=False)
    yield
    latents: torch.Tensor = loop.ctx.latents
    return latents
