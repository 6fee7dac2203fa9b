"""The handle of enabled reuse: what it does, and how to end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from omnireuse.errors import StateError, WrongTypeError
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse.hooks.inert import InertRuns
from omnireuse.hooks.run import RegionFactory
from omnireuse.hooks.session import Session, session_of
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.events import Decision, Event
from omnireuse.loop.strategy import Strategy
from omnireuse.models.regions import make_region
from omnireuse.profiles.guidance import Calibrated, CalibratedRuns
from omnireuse.references import ReferenceAxis
from omnireuse.summary.counters import Counts
from omnireuse.summary.summary import Promise, Summary, summary_html
from omnireuse.summary.tuning import Tuning

if TYPE_CHECKING:
    from omnireuse.profiles.profile import Profile
    from omnireuse.tuning.audit import Auditor
    from omnireuse.tuning.tuner import Tuner

__all__ = ["Handle", "disable", "handle_of"]


class Handle:
    """Reuse on one pipeline. `omnireuse.enable` returns it; as a context manager it disables reuse at the end.

    Attributes:
        name: name of the strategy in the summary.

    Args:
        pipeline: a pipeline with a denoiser.
        strategy: what is skipped, which policy decides, and what replaces a skipped value.
        name: name of the strategy.
        region: builds the region; the strategy's own by default.
        agreement: how ranks agree; by default this rank decides alone.
        promise: what a profile promises of the strategy's quality.
        like: the runs that the promise was measured on; each run is compared with them.
        tuner: builds the object that measures pictures and tunes the strategy; None if nothing is tuned.
        untuned: why nothing is tuned, in words.
        auditor: builds the object that compares some pictures with full runs; None for no audits.
        references: makes the computed calls of an editing model full or lean; None for full ones.
        adapts: go on in region "call" if region "step" meets several kinds of latents; without it that is an error.

    Raises:
        StateError: reuse is enabled on this pipeline already.
        UnsupportedModelError: the pipeline has no denoiser, or one that the region cannot serve.
        UnknownNameError: the model has no declaration for the region.
    """

    def __init__(
        self,
        pipeline: Any,
        strategy: Strategy,
        *,
        name: str,
        region: RegionFactory | None = None,
        agreement: Agreement | None = None,
        promise: Promise | None = None,
        like: Calibrated | None = None,
        tuner: Callable[[Session], Tuner] | None = None,
        untuned: str = "tune=False",
        auditor: Callable[[Session], Auditor] | None = None,
        references: ReferenceAxis | None = None,
        adapts: bool = False,
    ) -> None:
        if (present := handle_of(pipeline)) is not None:
            raise StateError(
                f"reuse is already enabled on this {type(pipeline).__name__} ({present.name}), so {name} cannot be "
                "enabled; call omnireuse.disable(pipeline) first"
            )
        self.name: str = name
        if promise is not None and promise.but is None and references is not None and references.plan is not None:
            but = "lean calls keep keys of references, and the profile was measured without"
            promise = replace(promise, but=but)
        self._counts, self._promise, self._references = Counts(), promise, references
        make, runs = region or make_region, None
        if like is not None and promise is not None:
            runs = CalibratedRuns(like, promise, name, lambda event: self._session.emit(event))
        self._session = Session(
            pipeline,
            strategy,
            make if references is None else references.around(make),
            self._counts.take,
            InertRuns(strategy, self._counts),
            handle=self,
            agreement=agreement,
            chooser=None if runs is None else runs.choose,
            adapts=adapts,
        )
        if tuner is not None:
            tuner(self._session)
        if auditor is not None:
            auditor(self._session)
        self._untuned = Tuning(state="off", reason=untuned)
        self._enabled = True
        self._pipeline = type(pipeline).__name__

    @property
    def strategy(self) -> Strategy:
        """The strategy in use."""
        return self._session.strategy

    @property
    def enabled(self) -> bool:
        """True if reuse is on: False after `disable`."""
        return self._enabled

    @property
    def tuning(self) -> Tuning:
        """The state of tuning, for the configuration of the latest run."""
        return self._untuned if (tuner := self._tuner) is None else tuner.tuning

    @property
    def tuned_profile(self) -> Profile | None:
        """The profile with the plan in use; None before tuning is ready, and if tuning is off."""
        return None if (tuner := self._tuner) is None else tuner.profile

    @property
    def events(self) -> tuple[Decision, ...]:
        """The decisions of all runs so far, oldest first; the latest 20,000 are kept."""
        return self._counts.decisions

    def subscribe(self, observer: Callable[[Decision], None]) -> Callable[[], None]:
        """Call `observer` with every decision from now on. The returned function ends it."""

        def hook(event: Event) -> None:
            if isinstance(event, Decision):
                observer(event)

        hooks = self._session.hooks
        hooks.all = (*hooks.all, hook)

        def unsubscribe() -> None:
            hooks.all = tuple(each for each in hooks.all if each is not hook)

        return unsubscribe

    @property
    def _tuner(self) -> Tuner | None:
        tuner: Tuner | None = self._session.tuner
        return tuner

    def summary(self) -> Summary:
        """What was computed and what was reused so far. `print` shows a short text; a notebook shows figures."""
        return self._counts.summary(
            self.name,
            self._promise,
            calls_outside=self._session.calls_outside,
            tuning=None if (tuner := self._tuner) is None else tuner.tuning,
            references=None if self._references is None else self._references.calls,
        )

    def expect(self, num_inference_steps: int | None) -> None:
        """Drop all state and set the step count of the next run, for engines without a diffusers scheduler.

        Args:
            num_inference_steps: number of steps, ≥ 1, else a ConfigError; None if it is not known.
        """
        self._session.expect(num_inference_steps)

    def advance(self, latents: torch.Tensor | None = None) -> None:
        """End a step, in a sampling loop that does not call its scheduler's `step`.

        Regions "call", "blocks" and "tail" reuse in such a loop. Region "step" computes everything there, because its
        forecast goes through the scheduler.

        Args:
            latents: what the next step starts from; needed to forecast x0 if the denoiser takes more channels
                than the latents have.

        Raises:
            StateError: no run is in progress.
        """
        self._session.advance(latents)

    def interrupt(self) -> None:
        """End the trial runs that tuning makes after a picture, at their next step; the call returns its picture. They
        go on after another one. Without any under way, none follow the pictures that are being made."""
        if (tuner := self._tuner) is not None:
            tuner.interrupt()

    def disable(self) -> None:
        """End reuse: restore the pipeline exactly and drop all state. Idempotent."""
        if (tuner := self._tuner) is not None:
            tuner.close()
        self._session.close()
        self._enabled = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse copies and pickles.

        Raises:
            WrongTypeError: always.
        """
        raise WrongTypeError(
            "a Handle belongs to one pipeline of this process and cannot be copied or pickled; call omnireuse.enable "
            "where the pipeline is loaded, and pass on handle.summary(), which can be pickled"
        )

    def __repr__(self) -> str:
        return f"<Handle on {self._pipeline}{'' if self._enabled else ' (disabled)'}: {self.summary()!r}>"

    def _repr_html_(self) -> str:
        """The handle as a notebook shows it."""
        summary = self.summary()
        state = "enabled" if self._enabled else "disabled"
        return summary_html(summary, f"{summary.name} on {self._pipeline}, {state}")

    def __enter__(self) -> Handle:
        """The handle itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disable reuse, also after an exception."""
        self.disable()


def handle_of(pipeline: Any) -> Handle | None:
    """The handle of this pipeline; None if no reuse is enabled on it."""
    session = session_of(pipeline)
    handle: Handle | None = None if session is None else session.handle
    return handle


def disable(pipeline: Any) -> None:
    """End reuse on this pipeline and restore it exactly. Does nothing if none is enabled.

    Raises:
        UnsupportedModelError: this is no pipeline with a denoiser.
    """
    handle = handle_of(pipeline)
    if handle is None:
        denoisers_of(pipeline)
    else:
        handle.disable()
