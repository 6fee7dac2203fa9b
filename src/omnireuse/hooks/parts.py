"""The interceptions on a pipeline's parts: its denoisers, scheduler, ControlNets and guiders.

A user may exchange the parts; `refresh` then intercepts the new ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from omnireuse.hooks.companions import COMPANIONS
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse.hooks.guiders import GUIDERS
from omnireuse.hooks.interception import Handler, Interception, intercept, is_bypassed

__all__ = ["Parts"]

Route = Callable[[str, Any], Mapping[str, Handler]]
"""The handlers of a part's methods, from its attribute (a denoiser's is its place, as text) and the part."""


class Parts:
    """The interceptions of one session on its pipeline's parts.

    Args:
        route: gives the handlers of each part; those of methods that the part lacks are left out.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self.denoisers: list[torch.nn.Module] = []
        self._others: dict[str, Any] = {}
        self._on_denoisers: list[Interception] = []
        self._on_others: list[Interception] = []

    @property
    def scheduler(self) -> Any:
        """The scheduler that tells the steps; None if the pipeline has none that does."""
        scheduler = self._others.get("scheduler")
        return scheduler if hasattr(scheduler, "set_timesteps") and hasattr(scheduler, "step") else None

    @property
    def are_bypassed(self) -> bool:
        """True if somebody has overwritten an interception, as `module.compile()` does."""
        return is_bypassed(self)

    def have_other_denoisers(self, pipeline: Any) -> bool:
        """True if the pipeline has other denoisers than the intercepted ones."""
        return not _are_same(denoisers_of(pipeline), self.denoisers)

    def refresh_denoisers(self, pipeline: Any) -> None:
        """Intercept the pipeline's present denoisers in place of those before."""
        self._undo(self._on_denoisers)
        self.denoisers = denoisers_of(pipeline)
        for place, denoiser in enumerate(self.denoisers):
            self._intercept(str(place), denoiser, self._on_denoisers)

    def refresh_others(self, pipeline: Any) -> None:
        """Intercept the pipeline's present other parts, where any is another one or bypassed."""
        parts = {name: getattr(pipeline, name, None) for name in ("scheduler", *COMPANIONS, *GUIDERS)}
        if _are_same([*parts.values()], [*self._others.values()]) and not self.are_bypassed:
            return
        self._undo(self._on_others)
        self._others = parts
        for name, part in parts.items():
            if part is not None and (part is self.scheduler or name != "scheduler"):
                self._intercept(name, part, self._on_others)

    def undo(self) -> None:
        """Restore every part. Idempotent."""
        self._undo(self._on_denoisers)
        self._undo(self._on_others)
        self.denoisers, self._others = [], {}

    def _intercept(self, name: str, part: Any, into: list[Interception]) -> None:
        handlers = {method: each for method, each in self._route(name, part).items() if hasattr(part, method)}
        into.append(intercept(part, self, handlers))

    def _undo(self, interceptions: list[Interception]) -> None:
        for interception in interceptions:
            interception.undo()
        interceptions.clear()


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
