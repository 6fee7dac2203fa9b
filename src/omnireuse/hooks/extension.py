"""What works beside the generations of a pipeline: a tuner, an auditor, a profile's promise, or a user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omnireuse.hooks.interception import MethodCall
from omnireuse.hooks.run import Chooser, Chosen, RegionFactory, RunStart
from omnireuse.loop.events import Hook

__all__ = ["ByCalls", "Extension", "InRegion", "Observer", "PipelineCall"]


@dataclass(frozen=True)
class PipelineCall(MethodCall):
    """A call of the pipeline. `choose` says what its runs follow, before any extension; None leaves that to them."""

    choose: Chooser | None = None


class Extension:
    """Works beside the generations of one pipeline, from `attach` until `close`. A subclass has what it needs of these
    methods; each of them does nothing here.

    Attributes:
        event: takes every event, in the thread of the run that it is of; None for none.
    """

    event: Hook | None = None

    def region(self, make: RegionFactory) -> RegionFactory:
        """The function that makes the regions of the session in place of `make`, asked before the session begins."""
        return make

    def attach(self, session: Any) -> None:
        """Begin: the `Session` is open on the pipeline."""

    def around(self, call: PipelineCall, make: Callable[[PipelineCall], Any]) -> Any:
        """Make a call of the pipeline by `make`, with something before or after it; return what it returns."""
        return make(call)

    def choose(self, start: RunStart) -> Chosen | None:
        """What a run that begins follows; None leaves it to the next extension, and at last to the strategy."""
        return None

    def summarize(self, fields: dict[str, Any]) -> None:
        """Add to the fields of a `Summary`, or change what others have added; `fields["notes"]` is a list of lines."""

    def close(self) -> None:
        """End: reuse is disabled."""


class Observer(Extension):
    """Hands every event to a function."""

    def __init__(self, hook: Hook) -> None:
        self.event = hook


class InRegion(Extension):
    """Lets other regions take the calls of the pipeline than those of its strategy."""

    def __init__(self, make: RegionFactory) -> None:
        self._make = make

    def region(self, make: RegionFactory) -> RegionFactory:
        return self._make


class ByCalls(Extension):
    """Goes on in region "call" if region "step" meets a denoiser that returns several kinds of latents; without it that
    is an error."""
