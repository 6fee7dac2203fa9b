"""What works beside the generations of a pipeline: a tuner, an auditor, a profile's promise, or a user's own."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import torch.distributed as dist

from omnireuse.hooks.run import RegionFactory
from omnireuse.loop.strategy import Strategy
from omnireuse.summary.tuning import Tuning

if TYPE_CHECKING:
    from omnireuse.hooks.session import Session

__all__ = ["ByCalls", "Extension", "InRegion", "Openable", "Opened", "Tunes", "Untuned"]


class Extension:
    """Works beside the generations of one pipeline, from `attach` until `close`. A subclass has what it needs of these
    methods; each of them does nothing here."""

    def region(self, make: RegionFactory) -> RegionFactory:
        """The function that makes the regions of the session in place of `make`, asked before the session begins."""
        return make

    def attach(self, session: Session) -> None:
        """Begin: the session is open on the pipeline."""

    def summarize(self, fields: dict[str, Any]) -> None:
        """Add to the fields of a `Summary`, or change what others have added."""

    def close(self) -> None:
        """End: reuse is disabled."""


Opened = tuple[Strategy, str, tuple[Extension, ...]]
"""A strategy, its name in the summary, and what works beside it."""


class Openable(Protocol):
    """What `enable` takes: a strategy, a target, a profile, a named cache."""

    def open(self, pipeline: Any, group: dist.ProcessGroup | None) -> Opened:
        """The strategy for a pipeline, and what goes with it.

        Args:
            group: the ranks that decide together; None if this one decides alone.
        """
        ...


class InRegion(Extension):
    """Lets other regions take the calls of the pipeline than those of its strategy."""

    def __init__(self, make: RegionFactory) -> None:
        self._make = make

    def region(self, make: RegionFactory) -> RegionFactory:
        return self._make


class ByCalls(Extension):
    """Goes on in region "call" if region "step" meets a denoiser that returns several kinds of latents; without it that
    is an error."""


class Tunes(Extension):
    """Tunes the strategy, or says why nothing is tuned.

    Attributes:
        references: full and lean calls of an editing pipeline, which are tuned, too; None for full ones.
    """

    references: Any = None

    @property
    @abstractmethod
    def tuning(self) -> Tuning:
        """The state of tuning."""

    @property
    def profile(self) -> Any:
        """A profile with the plan in use; None before there is one."""
        return None


class Untuned(Tunes):
    """Nothing is tuned, for a reason in words."""

    def __init__(self, reason: str) -> None:
        self._tuning = Tuning(state="off", reason=reason)

    @property
    def tuning(self) -> Tuning:
        return self._tuning
