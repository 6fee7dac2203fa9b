"""The interceptions of a session: at a pipeline's denoisers, scheduler and guiders, which a user may exchange."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.companions import COMPANIONS
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse.hooks.guiders import GUIDERS
from omnireuse.hooks.interception import Handler, Interception, intercept, is_bypassed
from omnireuse.hooks.run import Region
from omnireuse.loop.strategy import Strategy

__all__ = ["Attachment", "RegionFactory"]

RegionFactory = Callable[[Strategy, Sequence[torch.nn.Module], object], Region]


class Attachment:
    """The interceptions of one session on its pipeline's denoisers, scheduler, companions and guiders.

    Args:
        session: owns them.
        make_region: makes the region of a strategy.
        handlers: gives the handlers of one part by the names of its methods, from the attribute that holds the part
            ("" for a denoiser), the part, and its place among the denoisers.
    """

    def __init__(
        self, session: object, make_region: RegionFactory, handlers: Callable[[str, Any, int], dict[str, Handler]]
    ) -> None:
        self.region: Region | None = None
        """The region at work; None where nothing is attached."""
        self.denoisers: list[torch.nn.Module] = []
        self.scheduler: Any = None
        self.is_on_scheduler = False
        """True if there is a scheduler that tells the steps."""
        self._session, self._make_region, self._handlers = session, make_region, handlers
        self._kind = ""
        """Of the region at work."""
        self._on_denoisers: list[Interception] = []
        self._others: list[Any] = []
        self._on_others: list[Interception] = []

    def refresh(self, pipeline: Any, strategy: Strategy) -> None:
        """Stand before the pipeline's present denoisers and other parts.

        Raises:
            UnsupportedModelError: no denoiser, or no scheduler where the region needs one, or parts that cannot be
                intercepted.
        """
        session, denoisers = self._session, denoisers_of(pipeline)
        bypassed = is_bypassed(session)
        if not _are_same(denoisers, self.denoisers) or bypassed:
            self._leave_denoisers()
            self.denoisers = denoisers
            for index, denoiser in enumerate(denoisers):
                self._on_denoisers.append(intercept(denoiser, session, self._handlers("", denoiser, index)))
            self.region, self._kind = self._make_region(strategy, denoisers, session), strategy.region
        others = {name: getattr(pipeline, name, None) for name in ("scheduler", *COMPANIONS, *GUIDERS)}
        if not _are_same([*others.values()], self._others) or bypassed:
            self._leave_others()
            self._others, self.scheduler = [*others.values()], others["scheduler"]
            for name, part in others.items():
                handlers = self._handlers(name, part, 0)
                if handlers and all(hasattr(part, method) for method in handlers):
                    self._on_others.append(intercept(part, session, handlers))
                    self.is_on_scheduler |= name == "scheduler"
        if strategy.region == "step" and not self.is_on_scheduler:
            raise UnsupportedModelError(
                f"Strategy(region='step'): {type(pipeline).__name__}.scheduler must have set_timesteps and step, "
                f"got {self.scheduler!r}; use region='call', which needs no scheduler"
            )

    def is_left_behind(self, pipeline: Any) -> bool:
        """Compare: has the pipeline other denoisers by now?"""
        return not _are_same(denoisers_of(pipeline), self.denoisers)

    def region_for(self, strategy: Strategy) -> Region | None:
        """The region of a strategy; None where it is the one at work."""
        if strategy.region == self._kind:
            return None
        return self._make_region(strategy, self.denoisers, self._session)

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
        self.denoisers = []

    def _leave_others(self) -> None:
        for interception in self._on_others:
            interception.undo()
        self._on_others.clear()
        self.scheduler, self.is_on_scheduler, self._others = None, False, []


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
