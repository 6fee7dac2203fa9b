"""Tuning of a host's own denoising loops: each is measured, followed by shadows, or served by a frozen plan."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from omnireuse.engines.settings import RequestPlan
from omnireuse.errors import OmniReuseError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.generation import Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.fit import WeightFit
from omnireuse.policies import Steps
from omnireuse.policies.base import Policy
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entry import Entry
from omnireuse.tuning.recording import Recording
from omnireuse.tuning.shadows import Beside, Led
from omnireuse.tuning.trials import MeasuredCall, Pausing, Shadow
from omnireuse.tuning.tuner import HostTuner

__all__ = ["Loop", "LoopShadows", "LoopTuner"]

logger = logging.getLogger("omnireuse")

T = TypeVar("T")


class Loop(ABC):
    """A denoising loop as it is before its first step, so that it can be made again."""

    @property
    @abstractmethod
    def start(self) -> RunStart:
        """Its length, noise levels, scheduler and shape."""

    @abstractmethod
    def twin(self) -> Any:
        """A copy that no step of the other one changes."""

    @abstractmethod
    def check(self) -> None:
        """Refuse a loop that cannot be tuned.

        Raises:
            NotTunableError: it cannot.
        """

    @abstractmethod
    def configuration(self, start: RunStart) -> Configuration:
        """Loops that are like this one."""

    def recording(self) -> Recording:
        """A recording of its steps."""
        return Recording(self.start.scheduler, self.start.total or 0)


@dataclass(frozen=True)
class LoopShadows:
    """Shadows of loops, as `Shadows`. Each call's `replay` is its `Loop`, and latents are compared.

    Attributes:
        make: makes a loop whose steps are decided by the second argument; returns the final latents.
    """

    make: Callable[[Any, Beside], Pausing[torch.Tensor]]

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Pausing[Shadow]:
        again: Loop = call.replay.twin()
        return self._made(again, Beside(call.full, first_reused, Generation(strategy, again.start.levels)))

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Pausing[Shadow]:
        again: Loop = call.replay.twin()
        return self._made(again, Beside(call.full, fit.first_gap, Led(fit, call.full, again.start.scheduler)))

    def arrive(self, call: MeasuredCall) -> Shadow:
        return Shadow(0, call.full.final)

    def announce(self, words: str) -> None:
        logger.debug("%s", words)

    def _made(self, again: Loop, run: Beside) -> Pausing[Shadow]:
        latents = yield from self.make(again, run)
        return Shadow(run.computed, latents)


class LoopTuner(HostTuner):
    """Chooses what each loop of one host does. No picture fails because tuning does."""

    def find(self, policy: Policy, loop: Loop) -> Entry:
        """The entry of a loop under the untuned default.

        Raises:
            NotTunableError: it has none.
        """

        def configuration() -> Configuration:
            loop.check()
            return loop.configuration(loop.start)

        with self._registry.own_work():
            return self._registry.find(*self._registry.known(policy, loop.start, configuration))

    def choose(
        self,
        plan: RequestPlan,
        loop: Loop,
        go_on: Callable[[Entry], object],
        may_measure: Callable[[Entry], bool] = lambda _: True,
    ) -> tuple[RequestPlan, Entry | None]:
        """The plan of a loop that begins, and the entry that the loop is to be measured for, if it is.

        Args:
            plan: the untuned one.
            go_on: makes shadows of pictures that were all measured before: those of one batch alone, or those that have
                waited.
            may_measure: whether the host can measure a loop now.
        """
        if plan.strategy is None:
            return plan, None
        try:
            entry = self.find(plan.strategy.policy, loop)
        except OmniReuseError as error:
            self.pass_by(error)
            return plan, None
        self._latest = entry
        if entry.is_idle:
            go_on(entry)
        state = entry.tuning.state
        if entry.is_due and may_measure(entry):
            return replace(plan, entry=entry), entry
        entry.made(is_full=False)
        if state == "ready":
            self.say(str(entry.tuning))
        return self.tuned(plan, entry), None

    def tuned(self, plan: RequestPlan, entry: Entry) -> RequestPlan:
        """The plan that was chosen; the given one if the untuned default serves."""
        state = entry.tuning.state
        if state in ("measuring", "ready"):
            plan = replace(plan, entry=entry, tuned=state == "ready")
        if entry.strategy is None:
            return plan
        return replace(plan, strategy=entry.strategy, name=f"{plan.name}, tuned")

    def measure(
        self, entry: Entry, loop: Loop, run: Recording, proceed: Callable[[], T], go_on: Callable[[Entry], object]
    ) -> T:
        """Make a loop that is measured, and the shadows that are due after it.

        Args:
            loop: a copy, as it was before its first step.
            run: keeps the values of the loop that `proceed` makes.
            go_on: makes the shadows.
        """
        entry.start()
        try:
            result = proceed()
            if self.learn(entry, loop, run):
                go_on(entry)
        except Exception as error:
            entry.broken_off(error)
            raise
        finally:
            entry.is_busy = False
        return result

    @staticmethod
    def learn(entry: Entry, loop: Loop, run: Recording) -> bool:
        """Keep what a loop that was computed in full has shown, and tell whether trial runs are due (`Entry.learn`)."""
        entry.made(is_full=True)
        return entry.learn(run, loop)
