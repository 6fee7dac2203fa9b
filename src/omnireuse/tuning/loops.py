"""A loop of an engine that is measured, and the loops beside it. A step is one output, after guidance, and one step of
the scheduler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from omnireuse.errors import StateError
from omnireuse.loop.generation import Generation, layout_of
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.planning.fit import WeightFit
from omnireuse.planning.path import copied
from omnireuse.planning.solver import Arithmetic
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.recording import Recording

__all__ = ["Followed", "Given", "Led", "LoopRun", "MeasuredLoop", "ShadowLoop"]

Given = Callable[[int], Mapping[str, Any]]
"""Arguments of the scheduler's step beside the output and the latents, by the step."""


class LoopRun(ABC):
    """Decides the steps of one loop."""

    def __init__(self) -> None:
        self.branches: list[torch.Tensor] = []
        """Outputs of the branches of guidance at this step, where a host sees them; its `predict` puts them here."""

    @abstractmethod
    def step(self, predict: Callable[[], Any], step: int, latents: torch.Tensor, *, denoiser: int) -> Any:
        """The scheduler's input at one step.

        Args:
            predict: computes it.
            step: from 0.
            latents: that the scheduler starts this step from, shape (B, …).
            denoiser: place of the transformer, for models with one for early and one for late steps.
        """


class MeasuredLoop(LoopRun):
    """Computes every step, and keeps copies of its values.

    Args:
        scheduler: of the loop, as it is before the first step.
        total: steps of the loop.
    """

    def __init__(self, scheduler: Any, total: int, given: Given) -> None:
        super().__init__()
        self._given = given
        self.recording = Recording(scheduler, total)

    def step(self, predict: Callable[[], Any], step: int, latents: torch.Tensor, *, denoiser: int) -> Any:
        """The computed output itself."""
        output = predict()
        self.recording.keep(self._note, step, latents, denoiser, output)
        return output

    def end(self, latents: torch.Tensor) -> None:
        """Note the final latents."""
        self.recording.keep(self.recording.note_latents, latents)

    def _note(self, step: int, latents: torch.Tensor, denoiser: int, output: Any) -> None:
        if not isinstance(output, torch.Tensor):
            self.recording.fail(f"the model predicts {type(output).__name__} and not one tensor", is_permanent=True)
        elif step != len(self.recording.steps):
            self.recording.fail("the loop went back to an earlier step", is_permanent=False)
        else:
            if step:
                self.recording.note_latents(latents)
            for each in self.branches or [output]:
                self.recording.note_output(denoiser, each)
            self.recording.note_step(self._given(step), output, latents)


class ShadowLoop(LoopRun):
    """A loop beside a measured one, from the same latents. Steps before the first reused one are known."""

    def __init__(self, full: FullRun, first_reused: int) -> None:
        super().__init__()
        self._full, self._known = full, min(first_reused, len(full.path.calls))
        self.computed = 0
        """Calls of the transformer that were made."""

    def _output(self, predict: Callable[[], torch.Tensor], step: int, latents: torch.Tensor) -> torch.Tensor:
        self.branches = []
        if not step and not torch.equal(self._full.path.latents[0].to(latents.device), latents):
            raise StateError("a second loop of the same request begins with other latents")
        if step < self._known:
            self.branches = copied(self._full.path.calls[step], latents.device)
            known: torch.Tensor = copied(self._full.path.outputs[step], latents.device)
            return known
        output = predict()
        self.computed += len(self.branches) or 1
        return output


class Led(ShadowLoop):
    """Fits weights for a schedule, and follows them along the path of the full run.

    Args:
        full: the measured loop.
        fit: takes what is learnt.
        scheduler: of this loop.
    """

    def __init__(self, full: FullRun, fit: WeightFit, scheduler: Any, given: Given) -> None:
        super().__init__(full, fit.first_gap)
        self._led, self._scheduler, self._given = fit.begin(full.path.shares), scheduler, given

    def step(self, predict: Callable[[], Any], step: int, latents: torch.Tensor, *, denoiser: int) -> torch.Tensor:
        """What the weights so far give."""
        output = self._output(predict, step, latents) if self._led.computes else torch.zeros_like(latents)
        given = {**self._given(step), "model_output": output, "sample": latents}
        after = self._full.path.latents[step + 1].to(latents.device)
        used = self._led.step(
            self.branches or None, output, lambda: Arithmetic.of(self._scheduler, given).output_to(after)
        )
        return used.to(output.dtype)


class Followed(ShadowLoop):
    """Follows a strategy of region "step".

    Args:
        full: the measured loop.
        strategy: what the loop follows.
        first_reused: the first step that the strategy does not compute.
        levels: noise level of each step.
    """

    def __init__(self, full: FullRun, strategy: Strategy, first_reused: int, levels: Sequence[NoiseLevel]) -> None:
        super().__init__(full, first_reused)
        self._generation = Generation(strategy, levels)

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
