"""A denoising loop of SGLang that is measured, and the loops beside it that tuning learns from."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnireuse.engines.settings import KEY
from omnireuse.errors import StateError, UnsupportedModelError
from omnireuse.loop.generation import Generation, layout_of
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.schedulers import noise_levels
from omnireuse.pipelines.pictures import Picture
from omnireuse.planning.fit import WeightFit
from omnireuse.planning.solver import Arithmetic
from omnireuse.policies import Steps
from omnireuse.tuning.recording import Recording
from omnireuse.tuning.shadows import FRAMES
from omnireuse.tuning.trials import MeasuredCall, Shadow

__all__ = ["LoopCall", "LoopRun", "LoopShadows", "MeasuredLoop"]


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


class LoopRun(ABC):
    """Decides the steps of one loop, from its request's `extra`."""

    @abstractmethod
    def step(self, predict: Callable[[], Any], step: int, latents: torch.Tensor, *, denoiser: int) -> Any:
        """The scheduler's input at one step. Guidance is one call here, as SGLang's loop forecasts what comes after it.

        Args:
            predict: computes it.
            step: from 0.
            latents: that the scheduler starts this step from, shape (B, …).
            denoiser: place of the transformer, for models with one for early and one for late steps.
        """


class MeasuredLoop(LoopRun):
    """Computes every step, and keeps copies of its values.

    Args:
        call: the loop that is made.
    """

    def __init__(self, call: LoopCall) -> None:
        self._call = call
        self.recording = Recording(call.ctx.scheduler, len(call.ctx.timesteps))

    def step(self, predict: Callable[[], Any], step: int, latents: torch.Tensor, *, denoiser: int) -> Any:
        """The computed output itself."""
        output = predict()
        self.recording.keep(self._note, step, latents, denoiser, output)
        return output

    def end(self) -> None:
        """Note the final latents."""
        self.recording.keep(self.recording.note_latents, self._call.ctx.latents)

    def _note(self, step: int, latents: torch.Tensor, denoiser: int, output: Any) -> None:
        if not isinstance(output, torch.Tensor):
            self.recording.fail(f"the model predicts {type(output).__name__} and not one tensor", is_permanent=True)
            return
        if step:
            self.recording.note_latents(latents)
        self.recording.note_output(denoiser, output)
        self.recording.note_step(self._call.given(step), output, latents)


class _ShadowLoop(LoopRun):
    """A loop beside a measured one, from the same latents. Steps before the first reused one are known."""

    def __init__(self, call: MeasuredCall, again: LoopCall, first_reused: int) -> None:
        self._full, self._again = call.full, again
        self._known = min(first_reused, len(call.full.path.calls))
        self.computed = 0
        """Calls of the transformer that were made."""

    def _output(self, predict: Callable[[], Any], step: int, latents: torch.Tensor) -> torch.Tensor:
        if not step and not torch.equal(self._full.path.latents[0].to(latents.device), latents):
            raise StateError("a second loop of the same request begins with other latents")
        if step < self._known:
            known: torch.Tensor = self._full.path.calls[step][0]
            return known.to(latents.device, copy=True)
        self.computed += 1
        output: torch.Tensor = predict()
        return output


class _Led(_ShadowLoop):
    """Fits weights for a schedule, and follows them along the path of the full run."""

    def __init__(self, call: MeasuredCall, again: LoopCall, fit: WeightFit) -> None:
        super().__init__(call, again, fit.first_gap)
        self._led = fit.begin(call.full.path.shares)

    def step(self, predict: Callable[[], Any], step: int, latents: torch.Tensor, *, denoiser: int) -> torch.Tensor:
        """What the weights so far give."""
        output = self._output(predict, step, latents) if self._led.computes else torch.zeros_like(latents)
        given = {**self._again.given(step), "model_output": output, "sample": latents}
        after = self._full.path.latents[step + 1].to(latents.device)
        used = self._led.step(None, output, lambda: Arithmetic.of(self._again.ctx.scheduler, given).output_to(after))
        return used.to(output.dtype)


class _Followed(_ShadowLoop):
    """Follows a strategy of region "step"."""

    def __init__(self, call: MeasuredCall, again: LoopCall, strategy: Strategy, first_reused: int) -> None:
        super().__init__(call, again, first_reused)
        self._generation = Generation(strategy, noise_levels(again.ctx.scheduler))

    def step(self, predict: Callable[[], Any], step: int, latents: torch.Tensor, *, denoiser: int) -> torch.Tensor:
        """Computed, or forecast."""
        generation = self._generation
        choice = generation.decide(layout=(denoiser, layout_of(latents)))
        if choice.reuse:
            output = generation.predict(choice, latents)
        else:
            output = generation.observe(choice, self._output(predict, step, latents), latents)
        generation.advance()
        return output


class LoopShadows:
    """Shadows of denoising loops, as `Shadows`. Each call's `replay` is its `LoopCall`."""

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Shadow:
        """As `Shadows.follow`."""
        return self._made(call, lambda again: _Followed(call, again, strategy, first_reused))

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Shadow:
        """As `Shadows.lead`; the fit knows the steps of the policy."""
        return self._made(call, lambda again: _Led(call, again, fit))

    def arrive(self, call: MeasuredCall) -> Shadow:
        """As `Shadows.arrive`."""
        again = call.replay.twin()
        again.ctx.latents = call.full.final.to(again.ctx.latents.device)
        return Shadow(0, call.full.final, _decoded(again))

    def _made(self, call: MeasuredCall, make: Callable[[LoopCall], _ShadowLoop]) -> Shadow:
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
