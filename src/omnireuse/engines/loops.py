"""Tuning of a host's own denoising loops: each is measured, followed by shadows, or served by a frozen plan."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from omnireuse.engines.settings import RequestPlan
from omnireuse.hooks.run import RunStart
from omnireuse.loop.generation import Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.fit import WeightFit
from omnireuse.policies import Steps
from omnireuse.policies.base import Policy
from omnireuse.tuning.budget import Budget, budget_for
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entries import Entries, Entry
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.recording import Recording
from omnireuse.tuning.shadows import Beside, Led
from omnireuse.tuning.trials import MeasuredCall, Pausing, Shadow

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
    def untunable(self) -> str | None:
        """Why this loop cannot be tuned, in words; None if it can."""

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


class LoopTuner:
    """Chooses what each loop of one host does. No picture fails because tuning does."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self._said: set[str] = set()

    def find(self, policy: Policy, loop: Loop) -> Entry | str:
        """The entry of a loop under the untuned default; in words why it has none."""
        try:
            return loop.untunable() or self._found(policy, loop)
        except Exception as error:
            return f"the run cannot be told from others ({type(error).__name__}: {error})"

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
        self.entries.start(entry)
        try:
            result = proceed()
            self.made(entry, is_full=True)
            if self.learn(entry, loop, run):
                go_on(entry)
        except Exception as error:
            self.entries.failed(entry, f"a picture has failed ({type(error).__name__})")
            raise
        finally:
            entry.is_busy = False
        return result

    def made(self, entry: Entry, *, is_full: bool) -> None:
        """Count the loop's work: each step has one output (`Entries.made`)."""
        self.entries.made(entry, len(entry.budget.noises), is_full=is_full)

    def learn(self, entry: Entry, loop: Loop, run: Recording) -> bool:
        """Keep what the loop has shown, and tell whether trial runs are due (`Entries.learn`)."""
        return self.entries.learn(entry, run, lambda: FullRun.of(run), loop)

    def say(self, text: str) -> None:
        """Log a line once."""
        if text not in self._said:
            self._said.add(text)
            logger.info("%s", text)

    def _found(self, policy: Policy, loop: Loop) -> Entry | str:
        start = loop.start
        budget = budget_for(policy, start)
        if isinstance(budget, str):
            return budget
        configuration = loop.configuration(start)
        if configuration.conditions.weights is None:
            return "weights cannot be told apart, because they are sharded or not in memory"
        with self.entries.lock:
            return self._entry(configuration, budget)

    def _entry(self, configuration: Configuration, budget: Budget) -> Entry:
        return self.entries.find(configuration, budget)
