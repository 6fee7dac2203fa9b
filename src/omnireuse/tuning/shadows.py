"""Runs beside a measured one, from the same latents: they follow a strategy, fit weights, or end in its latents."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse.errors import ConfigError, StateError
from omnireuse.hooks.extension import PipelineCall
from omnireuse.hooks.live import StepRegion
from omnireuse.hooks.run import Chosen, Region, RunStart
from omnireuse.hooks.session import Session
from omnireuse.loop.stepper import NOTHING, Stepper
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.pictures import pictures_of
from omnireuse.planning.fit import WeightFit
from omnireuse.planning.path import branches_of, copied
from omnireuse.planning.solver import Arithmetic
from omnireuse.policies import Steps
from omnireuse.references import ReferenceAxis, References
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.pulse import Pulse
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.replay import Replay
from omnireuse.tuning.trials import MeasuredCall, Shadow

__all__ = ["Arrived", "Beside", "Led", "SessionShadows", "called_again"]

FRAMES = 8
"""Frames of a clip that are compared at most."""


class Beside(Stepper):
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

    def see(self, denoiser: int, output: Any, kinds: int = 1) -> None:
        self._seen += 1
        if self._seen > self._full.calls:
            raise StateError("a shadow has more calls of the denoiser in a step than the full run")
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
                self._pulse.computed()
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


class Led(Stepper):
    """Fits weights for a schedule, and follows them along the path of the full run.

    Args:
        fit: takes what is learnt.
        full: the full run.
        scheduler: of this run.
    """

    def __init__(self, fit: WeightFit, full: FullRun, scheduler: Any) -> None:
        self._led, self._path, self._scheduler = fit.begin(full.path.shares), full.path, scheduler
        self._made = list[tuple[int, Any]]()
        self._last = torch.zeros(())
        """The last computed output, for its shape."""

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        return self._led.computes

    def see(self, denoiser: int, output: Any, kinds: int = 1) -> None:
        self._made.append((denoiser, copied(output)))

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor:
        if output is not None:
            self._last = output
        like, after = self._last, self._path.latents[self._led.index + 1].to(latents.device)
        step = {**given, "model_output": like, "sample": latents}
        made, self._made = branches_of(self._made, like), []
        used = self._led.step(made, like, lambda: Arithmetic.of(self._scheduler, step).output_to(after))
        return used.to(like.dtype)


class Arrived(Stepper):
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


def called_again(
    session: Session,
    replay: Replay,
    proceed: Callable[..., Any],
    choose: Callable[[RunStart], Chosen],
) -> Any:
    """Make a call of a pipeline again, beside its picture; return what it returns.

    Args:
        session: at work on the pipeline.
        replay: of the call.
        proceed: makes a call of the pipeline.
        choose: what its runs follow.
    """
    outside = session.calls_outside
    try:
        return replay.again(
            session.pipeline, lambda *args, **kwargs: session.make(PipelineCall(proceed, args, kwargs, choose))
        )
    finally:
        session.calls_outside = outside


@dataclass
class SessionShadows:
    """Shadows of calls of a pipeline, as `Shadows`.

    Attributes:
        session: at work on the pipeline.
        proceed: makes a call of the pipeline.
        configuration: of the measured calls, whose weights the pipeline must have still; None if nothing is measured.
        references: of the pipeline; None if lean calls are not tried.
        pulse: of the trial runs; None if nobody can stop them.
    """

    session: Session
    proceed: Callable[..., Any]
    configuration: Configuration | None = None
    references: ReferenceAxis | None = None
    pulse: Pulse | None = None

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Shadow:
        """Follow a strategy of region "step"; `first_reused` is its first step that is not computed."""
        full = call.full

        def beside(start: RunStart) -> Beside:
            return Beside(full, first_reused, self.session.generation(strategy, start, full.pictures), self.pulse)

        return self._made(call, beside)

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Shadow:
        """Fit weights for the steps of a policy along the full run's path, and follow them."""
        return self._made(
            call, lambda start: Beside(call.full, fit.first_gap, Led(fit, call.full, start.scheduler), self.pulse)
        )

    def lean(self, call: MeasuredCall, strategy: Strategy, full_every: int) -> Shadow | None:
        """Follow a strategy with full and lean calls, all of which are made; None if the call has no references."""
        full, axis = call.full, self.references
        assert axis is not None, "lean calls are tried"
        before = axis.lean_shadows
        made = self._made(
            call,
            lambda start: Beside(full, 0, self.session.generation(strategy, start, full.pictures), self.pulse),
            references=axis.tuned(full_every),
        )
        return made if axis.lean_shadows > before else None

    def arrive(self, call: MeasuredCall) -> Shadow:
        """Decode the full run's latents again, without a call of the denoisers."""
        return self._made(call, lambda _: Beside(call.full, 0, Arrived(call.full), self.pulse))

    def _made(
        self,
        call: MeasuredCall,
        stepper: Callable[[RunStart], Beside],
        *,
        references: References | None = None,
    ) -> Shadow:
        made: list[Beside] = []

        def choose(start: RunStart) -> Chosen:
            made.append(stepper(start))
            region: Region = StepRegion(stepper=made[-1])
            region = region if self.references is None else self.references.wrapped(region)
            return Chosen(strategy=FULL, region=region, kind="shadow", references=references)

        result = called_again(self.session, call.replay, self.proceed, choose)
        if len(made) != 1 or (latents := made[0].latents) is None:
            raise StateError("a second call with the same arguments ends before its last step")
        if self.configuration is not None and not self.configuration.has_weights_of(self.session.pipeline):
            raise StateError("the weights of the measured pictures were replaced before or during a trial run")
        try:
            found = pictures_of(result, call.full.pictures, where=type(self.session.pipeline).__name__, strict=False)
            pictures = [each[:: -(-len(each) // FRAMES)] if each.ndim == 4 else each for each in found]
        except ConfigError:
            pictures = None  # latents, say: the final latents are compared then
        return Shadow(made[0].computed, latents, pictures)
