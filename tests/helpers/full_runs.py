"""Full runs that are recorded, and runs that fit weights along them, on any pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from omnireuse.handle import Handle
from omnireuse.hooks.extension import InRegion
from omnireuse.hooks.live import StepRegion
from omnireuse.planning.fit import WeightFit
from omnireuse.tuning.recording import FULL, FullRun, Recording
from omnireuse.tuning.trials import FitStepper, TrialStepper

T = TypeVar("T")


class Loop:
    """A pipeline whose denoiser returns given outputs: one a step, or two that guidance of scale 2 sums."""

    def __init__(
        self, scheduler: Any, outputs: Sequence[torch.Tensor | tuple[torch.Tensor, torch.Tensor]], latents: torch.Tensor
    ) -> None:
        self.scheduler, self.transformer = scheduler, _Given(outputs)
        self._latents = latents

    def __call__(self, **extra: Any) -> torch.Tensor:
        self.scheduler.set_timesteps(len(self.transformer.outputs))
        latents = self._latents
        for number, timestep in enumerate(self.scheduler.timesteps):
            if hasattr(self.scheduler, "scale_model_input"):
                self.scheduler.scale_model_input(latents, timestep)
            output = self.transformer(latents, number, 0)
            if isinstance(self.transformer.outputs[number], tuple):
                output = 2 * output - self.transformer(latents, number, 1)
            latents = self.scheduler.step(output, timestep, latents, **extra, return_dict=False)[0]
        return latents


class _Given(torch.nn.Module):
    def __init__(self, outputs: Sequence[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, latents: torch.Tensor, number: int, branch: int) -> torch.Tensor:
        given = self.outputs[number]
        return (given[branch] if isinstance(given, tuple) else given).clone()


def recorded(pipeline: Any, run: Callable[[], T], steps: int) -> tuple[FullRun, T]:
    """What a full run has shown, and what it returned."""
    recording = Recording(pipeline.scheduler, steps, calls_may_change=True)
    with Handle(pipeline, (FULL, "full run", (InRegion(lambda *_: StepRegion(stepper=recording)),))):
        result = run()
    assert recording.is_whole, recording.failure
    return FullRun.of(recording), result


def fit_along(pipeline: Any, run: Callable[[], T], fit: WeightFit, full: FullRun) -> T:
    """What a run returns that fits weights along a full run."""
    region = StepRegion(stepper=TrialStepper(full, fit.first_gap, FitStepper(fit, full, pipeline.scheduler)))
    with Handle(pipeline, (FULL, "fit", (InRegion(lambda *_: region),))):
        return run()
