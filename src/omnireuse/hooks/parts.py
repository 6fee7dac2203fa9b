"""The interceptions on a pipeline's parts: its denoisers, scheduler, ControlNets and guiders.

A user may exchange the parts; `refresh` then intercepts the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from omnireuse.hooks.companions import COMPANIONS
from omnireuse.hooks.denoisers import denoisers_of, unwrapped
from omnireuse.hooks.interception import Handler, Interception, MethodCall, intercept, is_bypassed

__all__ = ["GUIDERS", "Guided", "Parts", "caches_on", "guider_handlers"]


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
        self.scheduler: Any = None
        """The scheduler that tells the steps; None if the pipeline has none that does."""
        self.others: dict[str, Any] = {}
        """The pipeline's other parts by name, None among them; empty before they were looked at."""
        self._on_denoisers: list[Interception] = []
        self._on_others: list[Interception] = []

    @property
    def are_bypassed(self) -> bool:
        """True if somebody has overwritten an interception, as `module.compile()` does."""
        return is_bypassed(self)

    def have_other_denoisers(self, pipeline: object) -> bool:
        """True if the pipeline has other denoisers than the intercepted ones."""
        return [*map(id, denoisers_of(pipeline))] != [*map(id, self.denoisers)]

    def refresh_denoisers(self, pipeline: object) -> None:
        """Intercept the pipeline's present denoisers in place of those before."""
        self._undo(self._on_denoisers)
        self.denoisers = denoisers_of(pipeline)
        for place, denoiser in enumerate(self.denoisers):
            self._intercept(str(place), denoiser, self._on_denoisers)

    def refresh_others(self, pipeline: object) -> None:
        """Intercept the pipeline's present other parts in place of those before."""
        self._undo(self._on_others)
        self.others = parts = {name: getattr(pipeline, name, None) for name in ("scheduler", *COMPANIONS, *GUIDERS)}
        scheduler = parts["scheduler"]
        self.scheduler = scheduler if hasattr(scheduler, "set_timesteps") and hasattr(scheduler, "step") else None
        for name, part in parts.items():
            if part is not None and (part is self.scheduler or name != "scheduler"):
                self._intercept(name, part, self._on_others)

    def undo(self) -> None:
        """Restore every part. Idempotent."""
        self._undo(self._on_denoisers)
        self._undo(self._on_others)
        self.denoisers, self.others, self.scheduler = [], {}, None

    def _intercept(self, name: str, part: object, into: list[Interception]) -> None:
        handlers = {method: each for method, each in self._route(name, part).items() if hasattr(part, method)}
        into.append(intercept(part, self, handlers))

    def _undo(self, interceptions: list[Interception]) -> None:
        for interception in interceptions:
            interception.undo()
        interceptions.clear()


def caches_on(denoisers: Sequence[torch.nn.Module]) -> Iterator[tuple[str, str]]:
    """The denoisers on which a cache of diffusers is at work (`enable_cache`), each with the name of that cache."""
    for denoiser in map(unwrapped, denoisers):
        if getattr(denoiser, "is_cache_enabled", False) is True:
            yield type(denoiser).__name__, type(getattr(denoiser, "_cache_config", None)).__name__


GUIDERS = ("guider", "guider_2")
"""Attributes of a pipeline that hold a guider."""


class Guided:
    """The batches of one loop.

    Attributes:
        batch: name of the batch that the guider has prepared the denoiser for; None for none.
        to_come: names of the batches that it has prepared for this step and that are to come.
    """

    batch: str | None = None
    to_come: Iterator[str] = iter(())


def guider_handlers(guider: Any, guided: Callable[[], Guided]) -> dict[str, Handler]:
    """Handlers of a guider's methods, which give each denoiser call the name of its batch as its branch.

    Modular pipelines call a denoiser without `cache_context`, as a rule, and the order of a call does not show its
    branch: if guidance by an unconditional branch ends, the second call is that of another branch.

    Args:
        guided: gives the state of the loop that calls.
    """

    def inputs_prepared(call: MethodCall) -> Any:
        batches = call.make()
        guided().to_come = iter([str(getattr(batch, guider._identifier_key)) for batch in batches])
        return batches

    def models_prepared(call: MethodCall) -> Any:
        guided().batch = next(guided().to_come, None)
        return call.make()

    def models_cleaned(call: MethodCall) -> Any:
        guided().batch = None
        return call.make()

    return {
        "prepare_inputs": inputs_prepared,
        "prepare_inputs_from_block_state": inputs_prepared,
        "prepare_models": models_prepared,
        "cleanup_models": models_cleaned,
    }
