"""Trial runs: measured calls that are made again, from the same latents, and not computed in every step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch

from omnireuse.errors import ConfigError, StateError
from omnireuse.hooks.extension import PipelineCall
from omnireuse.hooks.live import StepRegion
from omnireuse.hooks.run import Chooser, Chosen, Region, RunStart
from omnireuse.hooks.session import Session
from omnireuse.loop.generation import Generation
from omnireuse.loop.stepper import NOTHING, Stepper
from omnireuse.loop.strategy import Strategy
from omnireuse.loop.wave import Wave
from omnireuse.pipelines.pictures import Picture, pictures_of
from omnireuse.planning.fit import WeightFit
from omnireuse.planning.path import branches_of, copied
from omnireuse.planning.solver import Arithmetic
from omnireuse.references import ReferenceAxis, References
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.pulse import Pulse
from omnireuse.tuning.recording import FULL, FullRun
from omnireuse.tuning.replay import Replay

__all__ = [
    "DecodeStepper",
    "FitStepper",
    "MeasuredCall",
    "Pausing",
    "PipelineTrials",
    "SessionTrials",
    "StepperOf",
    "TrialResult",
    "TrialStepper",
    "Trials",
    "finished",
    "replayed",
]


class TrialStepper(Stepper):
    """Follows another stepper beside a full run, whose first steps are not computed again.

    Args:
        full: the full run.
        first_reused: the first step that the other one does not compute. From there on the latents are not those of the
            full run.
        inner: the other one.
        pulse: asked before each step whether to go on; None if nobody can stop the run.

    Attributes:
        computed: calls of the model that were made, by the branches of guidance that the host sees.
        latents: a copy of the final ones; None before the last step is done, and from hosts that do not tell them.
    """

    def __init__(self, full: FullRun, first_reused: int, inner: Stepper, pulse: Pulse | None = None) -> None:
        self._full, self._inner, self._pulse = full, inner, pulse
        self._first_unknown = min(first_reused, len(full.path.calls))
        self._known: int | None = None
        """The step, if its output is due and known."""
        self._step = self._seen = self.computed = 0
        self.latents: torch.Tensor | None = None

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        if self._pulse is not None:
            self._pulse.step()
        is_due = self._inner.computes(step, latents, kind=kind)
        self._step, self._seen = step, 0
        self._known = step if is_due and step < self._first_unknown else None
        return is_due and self._known is None

    def see(self, denoiser: int, output: object, kinds: int = 1) -> None:
        self._seen += 1
        if self._seen > self._full.calls:
            raise StateError("a trial run has more calls of the denoiser in a step than the full run")
        self._inner.see(denoiser, output, kinds)

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor | None:
        start = self._full.path.latents[0].to(latents.device)
        if not self._step and not (start.shape == latents.shape and torch.equal(start, latents)):
            raise StateError("a run with the same arguments begins with other latents")
        if output is not None:
            self.computed += self._seen or 1
            if self._pulse is not None:
                self._pulse.bar.computed()
        elif self._known is not None:
            for each in self._full.path.calls[self._known]:
                self._inner.see(0, copied(each, latents.device))
            output = copied(self._full.path.outputs[self._known], latents.device)
        return self._inner.use(output, latents, given)

    def known(self, call: int, device: torch.device | None) -> Any:
        calls = self._full.path.calls
        is_known = self._step < len(calls) and call < len(calls[self._step])
        # Large recordings are on the host.
        return copied(calls[self._step][call], device) if is_known else None

    def arrived(self, latents: torch.Tensor | None) -> None:
        self._inner.arrived(latents)
        if latents is not None and self._full.ends_with(self._step):
            self.latents = latents.detach().clone()


class FitStepper(Stepper):
    """Fits weights for a schedule, and follows them along the path of the full run.

    Args:
        fit: takes what is learnt.
        full: the full run.
        scheduler: of this run.
    """

    def __init__(self, fit: WeightFit, full: FullRun, scheduler: object) -> None:
        self._run, self._path, self._scheduler = fit.begin(full.path.shares), full.path, scheduler
        self._made = list[tuple[int, Any]]()
        self._last = torch.zeros(())
        """The last computed output, for its shape."""

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        return self._run.computes

    def see(self, denoiser: int, output: object, kinds: int = 1) -> None:
        self._made.append((denoiser, copied(output)))

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor:
        if output is not None:
            self._last = output
        like, after = self._last, self._path.latents[self._run.index + 1].to(latents.device)
        step = {**given, "model_output": like, "sample": latents}
        made, self._made = branches_of(self._made, like), []
        used = self._run.step(made, like, lambda: Arithmetic.of(self._scheduler, step).output_to(after))
        return used.to(like.dtype)


class DecodeStepper(Stepper):
    """Computes nothing, and ends in the latents of the full run, whatever its outputs."""

    def __init__(self, full: FullRun) -> None:
        self._full, self._step = full, 0

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        self._step = step
        return False

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor:
        found: torch.Tensor = copied(self._full.path.outputs[0], latents.device)
        return found

    def arrived(self, latents: torch.Tensor | None) -> None:
        if latents is not None and self._full.ends_with(self._step):
            latents.copy_(self._full.final)


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
