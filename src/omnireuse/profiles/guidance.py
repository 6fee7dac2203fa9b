"""Likeness of runs to those of a plan's calibration, and the fallback strategy for other guidance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from omnireuse.hooks.call_arguments import arguments_of, differences, scales_of
from omnireuse.loop.strategy import Strategy
from omnireuse.summary.counters import Stats

__all__ = ["Calibrated", "CalibratedRuns", "Seen"]

logger = logging.getLogger("omnireuse")


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The runs that a plan was calibrated on.

    Attributes:
        arguments: of the pipeline's calls, as `arguments_of` returns them. 1 and below is no guidance.
        unlike: how the pipeline differs at this moment from the one that was calibrated, in words; None where it does
            not.
        fallback: the strategy for other guidance.
    """

    arguments: Mapping[str, Any]
    unlike: Callable[[], str | None]
    fallback: Strategy


class Seen(NamedTuple):
    """Guidance and arguments of a run.

    Attributes:
        unlike: how the pipeline differs, in words, if it does.
        arguments: of the pipeline's call; None where it was not called.
    """

    unlike: str | None
    arguments: Mapping[str, Any] | None


@dataclass(kw_only=True, eq=False)
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

    def look(self, pipeline: Any, /, *args: Any, **kwargs: Any) -> Seen:
        """The guidance and arguments of a call of the pipeline."""
        return Seen(self.like.unlike(), arguments_of(pipeline, *args, **kwargs))

    def strategy(self, calibrated: Strategy, seen: Seen | None) -> Strategy:
        """Strategy of a run that begins.

        Args:
            calibrated: of runs that are like those of the calibration.
            seen: when the pipeline was called; None in a loop that does not call it.
        """
        unlike, here = Seen(self.like.unlike(), None) if seen is None else seen
        if self.stats.is_judged:
            self._compare(unlike, here)
        return calibrated if here is None else self._by_guidance(calibrated, scales_of(here))

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
