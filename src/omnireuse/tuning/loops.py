"""Tuning of a host's own denoising loops: each is measured, followed by trial runs, or served by a frozen plan."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from omnireuse.errors import OmniReuseError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.stepper import NOTHING, Stepper
from omnireuse.loop.strategy import Strategy
from omnireuse.policies.base import Policy
from omnireuse.summary.summary import Promise
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entry import TuningEntry
from omnireuse.tuning.recording import Recording
from omnireuse.tuning.replay import unchanged_random_states
from omnireuse.tuning.trials import MeasuredCall, Pausing, StepperOf, TrialResult, Trials, TrialStepper
from omnireuse.tuning.tuner import HostTuner

__all__ = ["OFF", "LoopTrials", "LoopTuner", "MeasuredLoop", "RepeatableLoop", "RequestPlan"]

logger = logging.getLogger("omnireuse")


@dataclass(frozen=True)
class RequestPlan:
    """The strategy that one request, or one loop, follows.

    Attributes:
        strategy: None if the request computes every step.
        name: for logs and metrics.
        promise: of its quality, by the profile, if there is one.
        group: the ranks that decide together; None if each decides alone.
        entry: what tuning knows of requests like this one (`TuningEntry`); None if they are not tuned.
        tuned: whether tuning was finished when the request began.
        measured: records a loop that is measured (`MeasuredLoop`); None if it is not.
    """

    strategy: Strategy | None
    name: str
    promise: Promise | None = None
    group: dist.ProcessGroup | None = None
    entry: Any = None
    tuned: bool = False
    measured: Any = None


OFF = RequestPlan(strategy=None, name="off")


class RepeatableLoop(ABC):
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

    @abstractmethod
    def run(self, stepper: Stepper, host: Any) -> Pausing[torch.Tensor]:
        """Make the loop; return its final latents. It may pause after calls of the model.

        Args:
            stepper: decides its steps.
            host: what the engine makes its loops with.
        """

    def given(self, step: int) -> Mapping[str, Any]:
        """Arguments of the scheduler's step beside the output and the latents."""
        return {"return_dict": False}


class MeasuredLoop(Recording):
    """A recording of a loop.

    Attributes:
        entry: that it is measured for.
        loop: a copy, as it was before its first step.
    """

    def __init__(self, entry: TuningEntry, loop: RepeatableLoop) -> None:
        self.entry, self.loop = entry, loop.twin()
        start = self.loop.start
        super().__init__(start.scheduler, start.total or 0)

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor:
        return super().use(output, latents, given or self.loop.given(len(self.steps)))


@dataclass(frozen=True)
class LoopTrials(Trials):
    """Trial runs of loops. Each call's `replay` is its `RepeatableLoop`, and latents are compared.

    Attributes:
        host: what the engine makes its loops with.
    """

    host: Any = None

    def run(self, call: MeasuredCall, first_reused: int, stepper: StepperOf) -> Pausing[TrialResult]:
        again: RepeatableLoop = call.replay.twin()
        trial = TrialStepper(call.full, first_reused, stepper(again.start))
        latents = yield from again.run(trial, self.host)
        return TrialResult(trial.computed, latents)


class LoopTuner(HostTuner):
    """Chooses what each loop of one host does. No picture fails because tuning does."""

    def find(self, policy: Policy, loop: RepeatableLoop, **apart: str) -> TuningEntry:
        """The entry of a loop under the untuned default.

        Args:
            apart: what its configuration has beside that of the loop.

        Raises:
            NotTunableError: it has none.
        """

        def configuration() -> Configuration:
            loop.check()
            found = loop.configuration(loop.start)
            return msgspec.structs.replace(found, call={**found.call, **apart})

        with self._registry.own_work():
            return self._registry.find(*self._registry.known(policy, loop.start, configuration))

    def choose(self, plan: RequestPlan, loop: RepeatableLoop, host: object = None) -> RequestPlan:
        """The plan of a loop that begins: a tuned one, the given one, or one that measures every step.

        Trial runs of pictures that were all measured before are made first: those that have waited.

        Args:
            plan: the untuned one.
            host: what the engine makes its loops with.
        """
        if plan.strategy is None:
            return plan
        try:
            entry = self.find(plan.strategy.policy, loop)
        except OmniReuseError as error:
            self.leave_untuned(error)
            return plan
        self._latest = entry
        if entry.is_idle:
            self.go_on(entry, host)
        state = entry.tuning.state
        if entry.is_due and self.may_measure(entry, loop, host):
            measured = self._recording_of(entry, loop)
            if measured is not None:
                return replace(
                    plan, strategy=None, name=f"{plan.name}, measured", entry=entry, tuned=False, measured=measured
                )
        entry.made(is_full=False)
        if state == "ready":
            self.say(str(entry.tuning))
        return self.tuned(plan, entry)

    def tuned(self, plan: RequestPlan, entry: TuningEntry) -> RequestPlan:
        """The plan that was chosen; the given one if the untuned default serves."""
        state = entry.tuning.state
        if state in ("measuring", "ready"):
            plan = replace(plan, entry=entry, tuned=state == "ready")
        if entry.strategy is None:
            return plan
        return replace(plan, strategy=entry.strategy, name=f"{plan.name}, tuned")

    def forget(self) -> None:
        """Drop what was measured, and look for plans anew: the model has other weights."""
        self._registry.forget()
        self._latest = None

    @contextmanager
    def measuring(self, plan: RequestPlan, host: object = None) -> Iterator[None]:
        """The loop of a chosen plan is made within. If it is measured, the trial runs that are due follow it."""
        measured: MeasuredLoop | None = plan.measured
        if measured is None:
            yield
            return
        entry = measured.entry
        try:
            yield
            if self.learn(measured):
                self.go_on(entry, host)
        except Exception as error:
            entry.broken_off(error)
            raise
        finally:
            entry.is_busy = False

    def learn(self, measured: MeasuredLoop) -> bool:
        """Keep what a loop that was computed in full has shown, as `TuningEntry.learn`."""
        measured.entry.made(is_full=True)
        return measured.entry.learn(measured, measured.loop)

    def may_measure(self, entry: TuningEntry, loop: RepeatableLoop, host: object) -> bool:
        """Whether the host can measure a loop that is due now."""
        return True

    def go_on(self, entry: TuningEntry, host: object) -> None:
        """Make the trial runs that are due: beside a picture that is made if the entry is busy, before one if not."""
        with unchanged_random_states():
            entry.go_on(LoopTrials(host))

    def _recording_of(self, entry: TuningEntry, loop: RepeatableLoop) -> MeasuredLoop | None:
        try:
            with self._registry.own_work():
                measured = MeasuredLoop(entry, loop)
        except OmniReuseError as error:
            entry.failed(error, "a loop cannot be made again: ")
            return None
        entry.start()
        return measured
