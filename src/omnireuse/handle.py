"""The handle of enabled reuse: what it does, and how to end it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from omnireuse import messages
from omnireuse.errors import StateError, WrongTypeError
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse.hooks.extension import Extension, Observer
from omnireuse.hooks.inert import InertRuns
from omnireuse.hooks.opening import Opened, Tunes, Untuned
from omnireuse.hooks.session import Session, session_of
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.events import Decision, observing
from omnireuse.loop.strategy import Strategy
from omnireuse.models.regions import make_region
from omnireuse.summary.counters import Counts
from omnireuse.summary.summary import Summary, summary_html
from omnireuse.summary.tuning import Tuning

if TYPE_CHECKING:
    from omnireuse.profiles.profile import Profile

__all__ = ["Handle", "disable", "handle_of"]

E = TypeVar("E", bound=Extension)


class Handle:
    """Reuse on one pipeline. `omnireuse.enable` returns it; as a context manager it disables reuse at the end.

    Attributes:
        name: name of the strategy in the summary.

    Args:
        pipeline: a pipeline with a denoiser.
        opened: the strategy, its name, and what works beside it.
        group: the ranks that decide together; None if this one decides alone.

    Raises:
        StateError: reuse is enabled on this pipeline already.
        UnsupportedModelError: the pipeline has no denoiser, or one that the region cannot serve.
        UnknownNameError: the model has no declaration for the region.
    """

    def __init__(self, pipeline: object, opened: Opened, group: dist.ProcessGroup | None = None) -> None:
        strategy, self.name, extensions = opened
        if (present := handle_of(pipeline)) is not None:
            raise StateError(messages.ENABLED_ALREADY, pipeline=type(pipeline).__name__, name=present.name)
        self._counts = Counts()
        self._session = Session(
            pipeline,
            strategy,
            make_region,
            InertRuns(strategy, self._counts),
            (Observer(self._counts.take), *extensions),
            handle=self,
            agreement=Agreement(group),
        )
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
        return self._tunes.tuning

    @property
    def tuned_profile(self) -> Profile | None:
        """The profile with the plan in use; None before tuning is ready, and if tuning is off."""
        profile: Profile | None = self._tunes.profile
        return profile

    def attach(self, extension: Extension) -> None:
        """Let an extension work beside those that are there; its `region` is not asked any more."""
        self._session.attach(extension)

    def detach(self, extension: Extension) -> None:
        """Take an extension out, without closing it."""
        self._session.detach(extension)

    def extension(self, kind: type[E]) -> E | None:
        """The first extension of a kind; None if there is none."""
        return self._session.extension(kind)

    @property
    def _tunes(self) -> Tunes:
        return self.extension(Tunes) or Untuned("tune=False")  # type: ignore[type-abstract]  # it is only looked for

    @property
    def events(self) -> tuple[Decision, ...]:
        """The decisions of all runs so far, oldest first; the latest 20,000 are kept."""
        return self._counts.decisions

    def subscribe(self, observer: Callable[[Decision], None]) -> Callable[[], None]:
        """Call `observer` with every decision from now on. The returned function ends it.

        An error of the observer is logged once, and it goes on being called.
        """
        extension = Observer(observing(observer))
        self.attach(extension)
        return lambda: self.detach(extension)

    def summary(self) -> Summary:
        """What was computed and what was reused so far. `print` shows a short text; a notebook shows figures."""
        fields: dict[str, Any] = {"calls_outside": self._session.calls_outside, "notes": []}
        for each in self._session.extensions:
            each.summarize(fields)
        return self._counts.summary(self.name, **fields)

    def expect(self, num_inference_steps: int | None) -> None:
        """Drop all state, announce a run and set its step count, for engines without a diffusers scheduler.

        A step ends with `advance`, or when a call is given another timestep than the call before. Without a scheduler,
        a loop outside of the pipeline's call that is not announced is computed.

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
        self._tunes.interrupt()

    def disable(self) -> None:
        """End reuse: restore the pipeline exactly and drop all state. Idempotent."""
        for each in self._session.extensions:
            each.close()
        self._session.close()
        self._enabled = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse copies and pickles.

        Raises:
            WrongTypeError: always.
        """
        raise WrongTypeError(messages.HANDLE_COPIED)

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


def handle_of(pipeline: object) -> Handle | None:
    """The handle of this pipeline; None if no reuse is enabled on it."""
    session = session_of(pipeline)
    handle: Handle | None = None if session is None else session.handle
    return handle


def disable(pipeline: object) -> None:
    """End reuse on this pipeline and restore it exactly. Does nothing if none is enabled.

    Raises:
        UnsupportedModelError: this is no pipeline with a denoiser.
    """
    handle = handle_of(pipeline)
    if handle is None:
        denoisers_of(pipeline)
    else:
        handle.disable()
