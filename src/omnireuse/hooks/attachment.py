"""The interceptions of a session: at a pipeline's denoisers, scheduler and guiders, which a user may exchange."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.companions import COMPANIONS
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse.hooks.guiders import GUIDERS, guider_handlers
from omnireuse.hooks.interception import Interception, intercept, is_bypassed
from omnireuse.hooks.others import Others
from omnireuse.hooks.run import Region
from omnireuse.hooks.runs import Runs
from omnireuse.loop.strategy import Strategy

__all__ = ["Attachment", "RegionFactory"]

RegionFactory = Callable[[Strategy, Sequence[torch.nn.Module], object], Region]


class Attached(Protocol):
    """Handlers of intercepted calls, each called as ``handler(proceed, *args, **kwargs)``."""

    others: Others
    runs: Runs

    @property
    def pipeline(self) -> Any:
        """The pipeline."""

    def denoiser_handler(self, index: int, module: torch.nn.Module) -> Callable[..., Any]:
        """Takes the calls of one denoiser."""

    def companion_handler(self, name: str) -> Callable[..., Any]:
        """Takes the calls of companions of the denoisers."""

    def context_entered(self, proceed: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        """Takes the calls of a denoiser's `cache_context`."""

    def timesteps_set(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Takes the calls of the scheduler's `set_timesteps`."""

    def scheduler_stepped(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Takes the calls of the scheduler's `step`."""


class Attachment:
    """The interceptions of one session on its pipeline's denoisers, scheduler and guiders."""

    def __init__(self, session: Attached, make_region: RegionFactory) -> None:
        self.region: Region | None = None
        """The region at work; None where nothing is attached."""
        self.scheduler: Any = None
        self.is_on_scheduler = False
        """True if there is a scheduler that tells the steps."""
        self._session, self._make_region = session, make_region
        self._kind = ""
        """Of the region at work."""
        self._denoisers: list[torch.nn.Module] = []
        self._on_denoisers: list[Interception] = []
        self._guiders: list[Any] = []
        self._on_others: list[Interception] = []

    def refresh(self) -> None:
        """Stand before the pipeline's present denoisers, scheduler and guiders.

        Raises:
            UnsupportedModelError: no denoiser, or no scheduler where the region needs one, or parts that cannot be
                intercepted.
        """
        session, pipeline = self._session, self._session.pipeline
        denoisers, bypassed = denoisers_of(pipeline), is_bypassed(session)
        if not _are_same(denoisers, self._denoisers) or bypassed:
            self._leave_denoisers()
            self._denoisers = denoisers
            for index, denoiser in enumerate(denoisers):
                handlers: dict[str, Callable[..., Any]] = {"__call__": session.denoiser_handler(index, denoiser)}
                if hasattr(denoiser, "cache_context"):
                    handlers["cache_context"] = session.context_entered
                self._on_denoisers.append(intercept(denoiser, session, handlers))
            strategy = session.runs.strategy
            self.region, self._kind = self._make_region(strategy, denoisers, session), strategy.region
        session.others.look_for_caches(denoisers)
        scheduler = getattr(pipeline, "scheduler", None)
        guiders = [getattr(pipeline, name, None) for name in (*GUIDERS, *COMPANIONS)]
        if scheduler is not self.scheduler or not _are_same(guiders, self._guiders) or bypassed:
            self._leave_others()
            self.scheduler, self._guiders = scheduler, guiders
            self.is_on_scheduler = hasattr(scheduler, "set_timesteps") and hasattr(scheduler, "step")
            if self.is_on_scheduler:
                handlers = {"set_timesteps": session.timesteps_set, "step": session.scheduler_stepped}
                self._on_others.append(intercept(scheduler, session, handlers))
            for name in COMPANIONS:
                if isinstance(companion := getattr(pipeline, name, None), torch.nn.Module):
                    handlers = {"__call__": session.companion_handler(name)}
                    self._on_others.append(intercept(companion, session, handlers))
            for guider in guiders:
                handlers = guider_handlers(guider, session.runs)
                if all(hasattr(guider, name) for name in handlers):
                    self._on_others.append(intercept(guider, session, handlers))
        if session.runs.strategy.region == "step" and not self.is_on_scheduler:
            raise UnsupportedModelError(
                f"Strategy(region='step'): {type(pipeline).__name__}.scheduler must have set_timesteps and step, "
                f"got {scheduler!r}; use region='call', which needs no scheduler"
            )

    @property
    def is_left_behind(self) -> bool:
        """True if the pipeline has other denoisers by now."""
        return not _are_same(denoisers_of(self._session.pipeline), self._denoisers)

    def region_for(self, strategy: Strategy) -> Region | None:
        """The region of a strategy; None where it is the one at work."""
        if strategy.region == self._kind:
            return None
        return self._make_region(strategy, self._denoisers, self._session)

    def undo(self) -> None:
        """Restore every object. Idempotent."""
        self._leave_denoisers()
        self._leave_others()

    def _leave_denoisers(self) -> None:
        if self.region is not None:
            self.region.undo()
            self.region = None
        for interception in self._on_denoisers:
            interception.undo()
        self._on_denoisers.clear()
        self._denoisers = []

    def _leave_others(self) -> None:
        for interception in self._on_others:
            interception.undo()
        self._on_others.clear()
        self.scheduler, self.is_on_scheduler, self._guiders = None, False, []


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
