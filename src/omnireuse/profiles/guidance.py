"""Likeness of runs to those of a plan's calibration, and the fallback strategy for other guidance."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from omnireuse.hooks.run import Chosen, RunStart
from omnireuse.loop.events import FellBack, Hook, Unlike
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.call_arguments import arguments_of, differences, scales_of
from omnireuse.summary.summary import Promise

__all__ = ["DEFAULT_PLAN", "Calibrated", "CalibratedRuns", "Choice"]

logger = logging.getLogger("omnireuse")

DEFAULT_PLAN = "the default's plan"
"""The name of the fallback in a summary."""


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The runs that a plan was calibrated on.

    Attributes:
        arguments: of the pipeline's calls, as `arguments_of` returns them. 1 and below is no guidance.
        unlike: how the pipeline differs at this moment from the one that was calibrated, in words; None if it does
            not.
        fallback: the strategy for other guidance.
    """

    arguments: Mapping[str, Any]
    unlike: Callable[[], str | None]
    fallback: Strategy


class Choice(NamedTuple):
    """The strategy for one target.

    Attributes:
        strategy: that reaches it.
        name: for logs and the summary.
        promise: what a profile promises of it; None without a profile.
        like: the runs that the profile was measured on; None without a profile.
    """

    strategy: Strategy
    name: str
    promise: Promise | None = None
    like: Calibrated | None = None


@dataclass(eq=False)
class CalibratedRuns:
    """Compares each run with those of the calibration, and chooses its strategy.

    Attributes:
        like: the runs of the calibration.
        promise: that holds for runs like them.
        name: of the strategy, for the log.
        emit: takes an event for each difference, and for each run that follows another strategy.
    """

    like: Calibrated
    promise: Promise
    name: str
    emit: Hook

    def __post_init__(self) -> None:
        self._said = {self.promise.but}

    def choose(self, start: RunStart) -> Chosen:
        """The strategy of a run: the session's for one that is like those of the calibration."""
        assert start.strategy is not None, "a session names its own"
        here = None
        if start.call is not None:
            pipeline, args, kwargs = start.call
            here = arguments_of(pipeline, *args, **kwargs)
        if math.isfinite(self.promise.tenth):
            self._compare(here)
        other = None if here is None else self._other_guidance(scales_of(here))
        strategy = start.strategy if other is None else self.like.fallback
        if other is None:
            other = self.promise.unlike(start.total, start.levels)
        if other is not None:
            self._tell(other, "the default's steps")
            self.emit(FellBack(DEFAULT_PLAN))
        return Chosen(strategy=strategy)

    def _compare(self, here: Mapping[str, Any] | None) -> None:
        if (unlike := self.like.unlike()) is not None:
            self._tell(unlike)
        if here is None:
            self._tell("the pipeline was not called, so that the arguments of the run are not known")
        elif (other := differences(self.like.arguments, here)) is not None:
            self._tell(f"{other}: the profile was measured with other arguments")

    def _other_guidance(self, here: Mapping[str, float]) -> str | None:
        own = scales_of(self.like.arguments)
        unlike = {name: here[name] for name in own if here.get(name, own[name]) != own[name]}
        made = ", ".join(f"{name}={now:g} in place of {own[name]:g}" for name, now in unlike.items())
        return f"{made}: the profile was not calibrated for this guidance" if unlike else None

    def _tell(self, unlike: str, goes_on_with: str = "the profile's plan") -> None:
        """Report a difference; log it once."""
        self.emit(Unlike(unlike))
        if unlike not in self._said:
            self._said.add(unlike)
            logger.warning("%s: %s; this run goes on with %s, and nothing is promised", self.name, unlike, goes_on_with)
