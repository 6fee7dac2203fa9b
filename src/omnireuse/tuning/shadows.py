"""Runs beside a picture: they fit weights along the full run's path, follow a strategy, or arrive at its latents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnireuse.errors import ConfigError, StateError
from omnireuse.forecasters import Blend
from omnireuse.hooks.regions.cuts import Cuts
from omnireuse.hooks.regions.step import StepRegion
from omnireuse.hooks.run import Chosen, DenoiserCall, Region, Run, RunStart
from omnireuse.hooks.session import Session
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.pictures import pictures_of
from omnireuse.planning.fit import WeightFit
from omnireuse.planning.path import branches_of, copied
from omnireuse.planning.solver import Arithmetic
from omnireuse.policies import Steps
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.replay import Replay
from omnireuse.tuning.trials import MeasuredCall, Shadow

__all__ = ["Arriving", "Following", "Leading", "SessionShadows", "called_again", "leading"]

FRAMES = 8
"""Frames of a clip that are compared at most."""


class _Shadow(Region):
    """A shadow of a full run, from the same latents.

    Args:
        full: the full run. Its calls before the first reused step are not made again.
        first_reused: the first step that is not computed.
    """

    def __init__(self, full: FullRun, first_reused: int) -> None:
        self._full, self._first_reused = full, first_reused
        self._step, self._order = -1, 0
        self.computed = 0
        """Calls of the denoisers that were made."""
        self.latents: torch.Tensor | None = None
        """The final latents; None before the last step is done."""

    def stepped(self, run: Run, latents: torch.Tensor | None) -> None:
        """Note the final latents."""
        if run.generation.index + 1 == run.generation.total and latents is not None:
            self.latents = latents.detach().clone()

    def _next_call(self, run: Run) -> int:
        """Count a call of the step; return its place in it, from 0.

        Raises:
            StateError: the step has more calls than the full run's had.
        """
        if self._step != run.generation.index:
            self._step, self._order = run.generation.index, 0
        self._order += 1
        if self._order > self._full.calls:
            raise StateError("a shadow has more calls of the denoiser in a step than the full run")
        return self._order - 1

    def _compute(self, call: DenoiserCall, place: int) -> Any:
        # From the first reused step on, the latents are no longer those of the full run.
        if self._step < min(self._first_reused, len(self._full.path.calls)):
            return self._known(call, self._step, place)
        self.computed += 1
        return call.compute()

    def _known(self, call: DenoiserCall, step: int, place: int) -> Any:
        # Large recordings are on the host.
        device = next((tensor.device for tensor in call.tensors), None)
        return copied(self._full.path.calls[step][place], device)

    def _check_start(self, run: Run, sample: torch.Tensor) -> None:
        start = self._full.path.latents[0].to(sample.device)
        if run.generation.index == 0 and not (start.shape == sample.shape and torch.equal(start, sample)):
            raise StateError("a second call with the same arguments begins with other latents")


class Leading(_Shadow):
    """Fits weights for a schedule, and follows them along the path of the full run.

    Args:
        fit: takes what is learnt.
        full: the full run.
        scheduler: of the shadow.
    """

    def __init__(self, fit: WeightFit, full: FullRun, scheduler: Any) -> None:
        super().__init__(full, fit.first_gap)
        self._led, self._scheduler = fit.begin(full.path.shares), scheduler
        self._made: list[tuple[int, Any]] = []
        self._last: dict[int, Any] = {}

    def call(self, call: DenoiserCall) -> Any:
        """The computed output, or the last one where the schedule leaves the step out."""
        place = self._next_call(call.run)
        if not self._led.computes and place in self._last:
            return self._last[place]
        self._last[place] = output = self._compute(call, place)
        self._made.append((call.denoiser, copied(output)))
        return output

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """What the weights so far give."""
        self._check_start(run, sample)
        given, after = run.given, self._full.path.latents[run.generation.index + 1].to(sample.device)
        made, self._made = branches_of(self._made, output), []
        return self._led.step(made, output, lambda: Arithmetic.of(self._scheduler, given).output_to(after)).to(
            output.dtype
        )


def leading(policy: Steps) -> Strategy:
    """The strategy of a run that is led along the steps of a policy; its forecasts are not used."""
    return Strategy(policy=policy, forecaster=Blend(), prediction_target="output")


class Following(_Shadow):
    """Follows a strategy of region "step".

    Args:
        strategy: what the run follows.
        full: the full run.
        first_reused: the first step that the strategy does not compute.
    """

    def __init__(self, strategy: Strategy, full: FullRun, first_reused: int) -> None:
        super().__init__(full, first_reused)
        self._region = StepRegion(strategy, Cuts({}))

    def call(self, call: DenoiserCall) -> Any:
        """As the strategy's own region."""
        place = self._next_call(call.run)
        return self._region.call(replace(call, proceed=lambda *_, **__: self._compute(call, place)))

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """As the strategy's own region."""
        self._check_start(run, sample)
        return self._region.scheduler_step(run, output, sample)


class Arriving(_Shadow):
    """Computes nothing, and arrives at the full run's final latents, so that the pipeline decodes them again."""

    def __init__(self, full: FullRun) -> None:
        super().__init__(full, 0)

    def call(self, call: DenoiserCall) -> Any:
        """The full run's first output, whose values are not used."""
        return self._known(call, 0, self._next_call(call.run))

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """The output itself."""
        self._check_start(run, sample)
        return output

    def stepped(self, run: Run, latents: torch.Tensor | None) -> None:
        """Put the full run's final latents in place of those that the last step returned."""
        if run.generation.index + 1 == run.generation.total and latents is not None:
            latents.copy_(self._full.final)
        super().stepped(run, latents)


def called_again(
    session: Session,
    replay: Replay,
    proceed: Callable[..., Any],
    choose: Callable[[RunStart], Chosen],
    bar: str | None = None,
) -> Any:
    """Make a call of a pipeline again, beside its picture; return what it returns.

    Args:
        session: at work on the pipeline.
        replay: of the call.
        proceed: makes a call of the pipeline.
        choose: what its runs follow.
        bar: words for the bar that the pipeline shows; None hides it.
    """
    outside = session.calls_outside
    try:
        return replay.again(session.pipeline, lambda *args, **kwargs: session.call(proceed, args, kwargs, choose), bar)
    finally:
        session.calls_outside = outside


@dataclass
class SessionShadows:
    """Shadows of calls of a pipeline, as `Shadows`. Each shows a bar where the pipeline does.

    Attributes:
        session: at work on the pipeline.
        proceed: makes a call of the pipeline.
        words: for the bars.
    """

    session: Session
    proceed: Callable[..., Any]
    words: str = ""

    def announce(self, words: str) -> None:
        """As `Shadows.announce`."""
        self.words = words

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Shadow:
        """As `Shadows.follow`."""
        return self._made(call, strategy, lambda _: Following(strategy, call.full, first_reused))

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Shadow:
        """As `Shadows.lead`."""
        return self._made(call, leading(policy), lambda scheduler: Leading(fit, call.full, scheduler))

    def arrive(self, call: MeasuredCall) -> Shadow:
        """As `Shadows.arrive`."""
        return self._made(call, FULL, lambda _: Arriving(call.full), bar=None)

    def _made(
        self, call: MeasuredCall, strategy: Strategy, make_region: Callable[[Any], _Shadow], *, bar: str | None = ""
    ) -> Shadow:
        made: list[_Shadow] = []

        def choose(start: RunStart) -> Chosen:
            made.append(make_region(start.scheduler))
            return Chosen(strategy=strategy, region=made[-1], kind="shadow")

        result = called_again(self.session, call.replay, self.proceed, choose, None if bar is None else self.words)
        if len(made) != 1 or made[0].latents is None:
            raise StateError("a second call with the same arguments ends before its last step")
        try:
            found = pictures_of(result, call.full.pictures, where=type(self.session.pipeline).__name__, strict=False)
            pictures = [each[:: -(-len(each) // FRAMES)] if each.ndim == 4 else each for each in found]
        except ConfigError:
            pictures = None  # latents, say: the final latents are compared then
        return Shadow(made[0].computed, made[0].latents, pictures)
