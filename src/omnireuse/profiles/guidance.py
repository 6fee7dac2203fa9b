"""Likeness of runs to those of a plan's calibration, and the fallback strategy for other guidance."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from omnireuse.base.once import Once
from omnireuse.hooks.extension import Extension
from omnireuse.hooks.run import Chosen, RunStart
from omnireuse.hooks.session import Session
from omnireuse.loop.events import FellBack, Unlike
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.call_arguments import arguments_of, differences, scales_of
from omnireuse.profiles.profile import PlanChoice

__all__ = ["DEFAULT_PLAN", "CalibratedRuns"]

logger = logging.getLogger("omnireuse")

DEFAULT_PLAN = "the default's plan"
"""The name of the fallback in a summary."""


class CalibratedRuns(Extension):
    """Compares each run with those of a profile's calibration, and chooses its strategy.

    Args:
        pipeline: is held weakly.
        chosen: of the profile, with its promise.
        fallback: the strategy for other guidance than the profile's.
    """

    def __init__(self, pipeline: object, chosen: PlanChoice, fallback: Strategy) -> None:
        known = chosen.known
        assert known is not None, "a profile chose it"
        assert chosen.promise is not None, "a profile says what it promises"
        self.promise, self._name, self._fallback = chosen.promise, chosen.name, fallback
        self._known, self._arguments, self._said = known, known.arguments(pipeline), Once(chosen.promise.but)
        try:
            self._pipeline: Callable[[], Any] = weakref.ref(pipeline)
        except TypeError:
            self._pipeline = lambda: pipeline

    def attach(self, session: Session) -> None:
        self.emit = session.emit

    def summarize(self, fields: dict[str, Any]) -> None:
        fields["promise"] = self.promise

    def choose(self, start: RunStart) -> Chosen | None:
        """Another strategy for a run with other guidance than those of the calibration."""
        here = None
        if start.call is not None:
            pipeline, args, kwargs = start.call
            here = arguments_of(pipeline, *args, **kwargs)
        if math.isfinite(self.promise.tenth):
            self._compare(here)
        other = None if here is None else self._other_guidance(scales_of(here))
        unlike = other or self.promise.unlike(start.total, start.levels)
        if unlike is not None:
            self._tell(unlike, "the default's steps")
            self.emit(FellBack(DEFAULT_PLAN))
        return None if other is None else Chosen(strategy=self._fallback)

    def _compare(self, here: Mapping[str, Any] | None) -> None:
        pipeline = self._pipeline()
        if pipeline is not None and (unlike := self._known.unlike(pipeline)) is not None:
            self._tell(unlike)
        if here is None:
            self._tell("the pipeline was not called, so that the arguments of the run are not known")
        elif (other := differences(self._arguments, here)) is not None:
            self._tell(f"{other}: the profile was measured with other arguments")

    def _other_guidance(self, here: Mapping[str, float]) -> str | None:
        own = scales_of(self._arguments)
        unlike = {name: here[name] for name in own if here.get(name, own[name]) != own[name]}
        made = ", ".join(f"{name}={now:g} in place of {own[name]:g}" for name, now in unlike.items())
        return f"{made}: the profile was not calibrated for this guidance" if unlike else None

    def _tell(self, unlike: str, goes_on_with: str = "the profile's plan") -> None:
        """Report a difference; log it once."""
        self.emit(Unlike(unlike))
        if self._said.is_new(unlike):
            logger.warning(
                "%s: %s; this run goes on with %s, and nothing is promised", self._name, unlike, goes_on_with
            )
