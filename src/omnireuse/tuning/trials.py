"""Trial runs: measured calls that are made again, from the same latents, and not computed in every step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch

from omnireuse.errors import ConfigError, StateError
from omnireuse.hooks.extension import PipelineCall
from omnireuse.hooks.live import StepRegion
from omnireuse.hooks.run import Chooser, Chosen, Region, RunStart
from omnireuse.hooks.session import Session
from omnireuse.loop.generation import Generation
from omnireuse.loop.stepper import Stepper
from omnireuse.loop.strategy import Strategy
from omnireuse.loop.wave import Wave
from omnireuse.pipelines.pictures import Picture, pictures_of
from omnireuse.planning.fit import WeightFit
from omnireuse.references import ReferenceAxis, References
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.pulse import Pulse
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.replay import Replay
from omnireuse.tuning.steppers import DecodeStepper, FitStepper, TrialStepper

__all__ = [
    "MeasuredCall",
    "Pausing",
    "PipelineTrials",
    "SessionTrials",
    "StepperOf",
    "TrialResult",
    "Trials",
    "finished",
    "replayed",
]

FRAMES = 8
"""Frames of a clip that are compared at most."""

T = TypeVar("T")
Pausing = Generator[None, None, T]
"""Work that pauses if its host makes pauses, after calls of the model."""
StepperOf = Callable[[RunStart], Stepper]
"""Makes what decides the steps of a run that begins."""


def finished(work: Pausing[T]) -> T:
    """Do all of the work at once; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's own type


@dataclass(frozen=True, kw_only=True)
class MeasuredCall:
    """A call whose run was measured, and that can be made again.

    Attributes:
        replay: from which the host makes the call again.
        full: what was measured.
    """

    replay: Any
    full: FullRun


class TrialResult(NamedTuple):
    """What a trial run has made.

    Attributes:
        computed: calls of the denoisers.
        latents: the final latents, one row for each picture.
        pictures: as floats in 0…1; None if the call returns none.
    """

    computed: int
    latents: torch.Tensor
    pictures: Sequence[Picture] | None = None


class Trials(ABC):
    """Makes measured calls again. Calls of the denoisers before the first reused step are known of the full run."""

    @abstractmethod
    def run(self, call: MeasuredCall, first_reused: int, stepper: StepperOf) -> Pausing[TrialResult]:
        """Make a call again.

        Args:
            first_reused: the first step that is not computed.
            stepper: what decides its steps.
        """

    def stepper(self, strategy: Strategy, start: RunStart, pictures: int) -> Stepper:
        """Follows a strategy of region "step" in a run of so many pictures."""
        return Generation(strategy, start.levels)

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Pausing[TrialResult]:
        """Follow a strategy of region "step"."""
        return self.run(call, first_reused, lambda start: self.stepper(strategy, start, call.full.pictures))

    def fit(self, call: MeasuredCall, fit: WeightFit) -> Pausing[TrialResult]:
        """Fit weights for a schedule along the full run's path, and follow them."""
        return self.run(call, fit.first_gap, lambda start: FitStepper(fit, call.full, start.scheduler))

    def pictures(self, call: MeasuredCall) -> Sequence[Picture] | None:
        """The pictures of the full run, made again without a call of the denoisers; None if latents are compared."""
        return None


class PipelineTrials(Trials):
    """Trial runs of calls of a pipeline.

    Attributes:
        pulse: of the trial runs; None if nobody can stop them.
    """

    pulse: Pulse | None = None

    @abstractmethod
    def again(self, call: MeasuredCall, choose: Chooser) -> Sequence[Picture] | None:
        """Make a call again, whose one run follows what is chosen; return its pictures."""

    def run(self, call: MeasuredCall, first_reused: int, stepper: StepperOf) -> Pausing[TrialResult]:
        made: list[TrialStepper] = []

        def choose(start: RunStart) -> Chosen:
            made.append(TrialStepper(call.full, first_reused, stepper(start), self.pulse))
            return Chosen(strategy=FULL, region=StepRegion(stepper=made[-1]), kind="uncounted")

        pictures = self.again(call, choose)
        if len(made) != 1 or (latents := made[0].latents) is None:
            raise StateError("a second call with the same arguments ends before its last step")
        yield from ()
        return TrialResult(made[0].computed, latents, pictures)

    def pictures(self, call: MeasuredCall) -> Sequence[Picture] | None:
        return finished(self.run(call, 0, lambda _: DecodeStepper(call.full))).pictures


def replayed(session: Session, replay: Replay, call: PipelineCall, choose: Chooser) -> Any:
    """Make a call of a pipeline again, beside its picture; return what it returns.

    Args:
        session: at work on the pipeline.
        replay: of the call.
        call: of the pipeline, whose arguments are replaced.
        choose: what its runs follow.
    """
    outside = session.calls_outside
    try:
        return replay.again(session, replace(call, choose=choose))
    finally:
        session.calls_outside = outside


class SessionTrials(PipelineTrials):
    """Trial runs beside the pictures of a session.

    Args:
        session: at work on the pipeline.
        call: of the pipeline, the latest.
        configuration: of the measured calls, whose weights the pipeline must have still; None if nothing is measured.
        references: of the pipeline; None if lean calls are not tried.
        pulse: as the attribute.
    """

    def __init__(
        self,
        session: Session,
        call: PipelineCall,
        configuration: Configuration | None = None,
        references: ReferenceAxis | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        self._session, self._call, self._axis, self.pulse = session, call, references, pulse
        self._configuration = configuration
        self._references: References | None = None

    def stepper(self, strategy: Strategy, start: RunStart, pictures: int) -> Stepper:
        generation = self._session.generation(strategy, start)
        return Wave([generation], pictures) if pictures > 1 and strategy.decides_by_sample else generation

    def lean(self, call: MeasuredCall, strategy: Strategy, full_every: int) -> Pausing[TrialResult | None]:
        """Follow a strategy with full and lean calls, all of which are made; None if the call has no references."""
        axis = self._axis
        assert axis is not None, "lean calls are tried"
        before, self._references = axis.lean_trials, axis.tuned(full_every)
        try:
            made = yield from self.follow(call, strategy, 0)
        finally:
            self._references = None
        return made if axis.lean_trials > before else None

    def again(self, call: MeasuredCall, choose: Chooser) -> Sequence[Picture] | None:
        def chosen(start: RunStart) -> Chosen:
            found, axis = choose(start), self._axis
            region: Region | None = found.region
            if axis is not None and region is not None:
                region = axis.wrapped(region)
            return replace(found, region=region, references=self._references)

        result = replayed(self._session, call.replay, self._call, chosen)
        if self._configuration is not None and not self._configuration.has_weights_of(self._session.pipeline):
            raise StateError("the weights of the measured pictures were replaced before or during a trial run")
        try:
            found = pictures_of(result, call.full.pictures, where=type(self._session.pipeline).__name__, strict=False)
        except ConfigError:
            return None  # latents, say: the final latents are compared then
        return [each[:: -(-len(each) // FRAMES)] if each.ndim == 4 else each for each in found]
