"""Likeness of runs to those of a plan's calibration, and the fallback strategy for other guidance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from omnireuse.hooks.run import Chooser, Chosen
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.call_arguments import arguments_of, differences, scales_of
from omnireuse.summary.counters import Stats
from omnireuse.summary.summary import Promise

__all__ = ["Calibrated", "CalibratedRuns", "Choice"]

logger = logging.getLogger("omnireuse")


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
        stats: promises nothing from the first run on that is unlike them; counts runs that follow another strategy.
        name: of the strategy, for the log.
        said: warnings so far.
    """

    like: Calibrated
    stats: Stats
    name: str
    said: set[str] = field(default_factory=set)

    def chooser(self, calibrated: Strategy, call: tuple[Any, Sequence[Any], Mapping[str, Any]] | None) -> Chooser:
        """The chooser of the strategy of runs in one call.

        Args:
            calibrated: of runs that are like those of the calibration.
            call: the pipeline and its arguments; None in a loop that does not call it.
        """
        unlike, here = self.like.unlike(), None
        if call is not None:
            pipeline, args, kwargs = call
            here = arguments_of(pipeline, *args, **kwargs)

        def choose(_: object) -> Chosen:
            if self.stats.is_judged:
                self._compare(unlike, here)
            return Chosen(strategy=calibrated if here is None else self._by_guidance(calibrated, scales_of(here)))

        return choose

    def _compare(self, unlike: str | None, here: Mapping[str, Any] | None) -> None:
        if unlike is not None:
            self._withdraw(unlike)
        if here is None:
            self._withdraw("the pipeline was not called, so that the arguments of the run are not known")
        elif (other := differences(self.like.arguments, here)) is not None:
            self._withdraw(f"{other}: the profile was measured with other arguments")

    def _by_guidance(self, calibrated: Strategy, here: Mapping[str, float]) -> Strategy:
        own = scales_of(self.like.arguments)
        unlike = {name: here[name] for name in own if here.get(name, own[name]) != own[name]}
        if not unlike:
            return calibrated
        made = ", ".join(f"{name}={now:g} in place of {own[name]:g}" for name, now in unlike.items())
        self._withdraw(f"{made}: the profile was not calibrated for this guidance", "the default's steps")
        self.stats.fell_back("the default's plan")
        return self.like.fallback

    def _withdraw(self, why: str, goes_on_with: str = "the profile's plan") -> None:
        self.stats.withdraw(why)
        if why not in self.said:
            self.said.add(why)
            logger.warning("%s: %s; this run goes on with %s, and nothing is promised", self.name, why, goes_on_with)
