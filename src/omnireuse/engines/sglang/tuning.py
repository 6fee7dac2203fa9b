"""Tuning of SGLang's own pipelines: a denoising loop is measured, followed by shadows, or served by a frozen plan."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import torch.distributed as dist

from omnireuse.engines.settings import KEY, RequestPlan
from omnireuse.engines.sglang.measuring import LoopCall, LoopShadows
from omnireuse.hooks.run import RunStart
from omnireuse.noise.schedulers import noise_levels
from omnireuse.profiles.conditions import watch_of
from omnireuse.tuning.budget import budget_for
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entries import Entries, Entry
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.loops import MeasuredLoop
from omnireuse.tuning.store import Store

__all__ = ["LoopTuner"]

logger = logging.getLogger("omnireuse")

SAFE = ("DenoisingStage",)
"""Stages whose loop keeps nothing but what its context holds, so that it can be made again."""
FORM = ("negative_prompt", "num_outputs_per_prompt", "condition_inputs", "diffusers_kwargs", "num_inference_steps")
"""Fields of a request beside those that SGLang itself leaves out of a batch's signature: for contents and number."""
FORMS = ("output", "return_", "save_")
"""Beginnings of fields for the form of pictures."""


class LoopTuner:
    """Chooses what each denoising loop of one process does.

    Args:
        pictures: how many are measured at most, ≥ 1.
    """

    def __init__(self, pictures: int) -> None:
        self._entries = Entries(pictures=pictures, store=Store(), command="SGLang with omnireuse")
        self._said: set[str] = set()

    def begin(self, plan: RequestPlan, call: LoopCall) -> RequestPlan | Entry:
        """The plan of a loop, or the entry that it is to be measured for."""
        try:
            found = self._found(plan, call)
        except Exception as error:  # the picture must not fail because tuning does
            found = f"the request cannot be told from others ({type(error).__name__}: {error})"
        if isinstance(found, str):
            if found not in self._said:
                self._said.add(found)
                logger.info("tuning is off: %s", found)
            return plan
        if self._entries.is_whole(found):
            # One batch has shown enough: its shadows come before the second one.
            self._entries.go_on(found, LoopShadows())
        if found.tuning.state == "measuring":
            return found
        if found.strategy is None:
            return plan
        return dataclasses.replace(plan, strategy=found.strategy, name=f"{plan.name}, tuned", tuned=True)

    def measure(self, entry: Entry, call: LoopCall, **kwargs: Any) -> tuple[Any, dict[str, float]]:
        """Make a loop that is measured, and the shadows that are due after it.

        Returns:
            The loop's result, and figures for the response.
        """
        again = call.twin()
        self._entries.start(entry)
        call.batch.extra[KEY] = run = MeasuredLoop(call.ctx.scheduler, len(call.ctx.timesteps), call.given)
        try:
            result = call.make(**kwargs)
            run.end(call.ctx.latents)
        except Exception as error:
            self._entries.failed(entry, f"a picture has failed ({type(error).__name__})")
            raise
        finally:
            call.batch.extra.pop(KEY, None)
            entry.is_busy = False
        if self._entries.learn(entry, run.recording, lambda: FullRun.of(run.recording), again):
            self._entries.go_on(entry, LoopShadows())
        return result, {f"{KEY}_tuned": 0.0, f"{KEY}_pictures_measured": float(entry.tuning.pictures)}

    def _found(self, plan: RequestPlan, call: LoopCall) -> Entry | str:
        """The entry of a loop; in words why it has none."""
        ctx, scheduler = call.ctx, call.ctx.scheduler
        if type(call.stage).__name__ not in SAFE:
            return f"{type(call.stage).__name__} may keep more than its context, so its loop is not made again"
        if dist.is_initialized() and dist.get_world_size() > 1:
            return "SGLang's own pipelines are tuned on one rank alone"
        if ctx.reserved_frames_mask is not None or ctx.z is not None:
            return "loops that change their latents after the scheduler's step are not tuned"
        if call.batch.sampling_params.rollout:
            return "rollouts are not tuned"
        if any("WithLoRA" in type(each).__name__ for each in call.stage.transformer.modules()):
            return "LoRA adapters of SGLang cannot be told apart"
        if plan.strategy is None:
            return "every step computes"
        is_whole = len(getattr(scheduler, "timesteps", ())) == len(ctx.timesteps)
        start = RunStart(
            total=len(ctx.timesteps),
            levels=noise_levels(scheduler) if is_whole else (),
            scheduler=scheduler,
            shape=tuple(ctx.latents.shape),
        )
        budget = budget_for(plan.strategy.policy, start)
        if isinstance(budget, str):
            return budget
        conditions = watch_of(call.stage).now()
        if conditions.weights is None:
            return "weights cannot be told apart, because they are sharded or not in memory"
        configuration = Configuration(
            pipeline=f"SGLang: {type(call.server_args.pipeline_config).__name__}",
            conditions=conditions,
            scheduler=type(scheduler).__name__,
            noises=tuple(round(level.coordinate, 4) for level in start.levels),
            call=_arguments(call),
            shape=start.shape[1:],
        )
        with self._entries.lock:
            return self._entries.find(configuration, budget)


def _arguments(call: LoopCall) -> dict[str, str]:
    """Arguments of the request but contents, number and form, as text by name."""
    params = call.batch.sampling_params
    found = {
        field.name: repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__
        for field in dataclasses.fields(params)
        if not field.metadata.get("batch_sig_exclude") and field.name not in FORM and not field.name.startswith(FORMS)
        for value in (getattr(params, field.name),)
    }
    ctx = call.ctx
    return found | {
        "branches": "unknown" if ctx.cfg_policy is None else str(len(ctx.cfg_policy.branches)),
        "computed in": str(ctx.target_dtype),
        "image": str(call.batch.image_latent is not None),
    }
