"""Begin and end of a pipeline's runs, for each thread.

A run starts at the first denoiser call after the scheduler's `set_timesteps`, and its `step` ends a step. Where nobody
calls that, the step given to `cache_context` counts. Without either, an engine gives the number of steps through
`expect`, and a step ends when a call comes with another timestep.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from omnireuse.base.validation import field_error, is_whole
from omnireuse.errors import StateError
from omnireuse.hooks.companions import Companions
from omnireuse.hooks.denoisers import unwrapped
from omnireuse.hooks.ranks import check_agreement
from omnireuse.hooks.run import Chooser, Chosen, Region, Run, RunStart
from omnireuse.hooks.timesteps import StepsByTimestep, timestep_of, warn_without_timestep
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.generation import Emit, Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.noise.schedulers import noise_levels

__all__ = ["Follower", "Runs", "StepHint", "ThreadState"]

logger = logging.getLogger("omnireuse")


Follower = Callable[[Strategy, "tuple[Any, Sequence[Any], Mapping[str, Any]] | None"], Chooser]
"""A function that makes the chooser of runs in a call, from the session's strategy, the pipeline and the arguments of
the call; the latter are None in a loop that does not call it. `profiles.guidance.CalibratedRuns.chooser` is one."""


class StepHint(NamedTuple):
    """The loop's position, from the pipeline's `cache_context`."""

    step: int | None = None
    total: int | None = None
    sigma: Any = None


class ThreadState(threading.local):
    """The state of one thread.

    Attributes:
        scheduler: its timesteps were set, and its run has not begun.
        run: under way.
        had_run: whether a run began since the pipeline was called.
        context: the cache context that the pipeline has entered.
        told: its arguments beside the name.
        batches: names of the batches that the guider has prepared for this step and that are to come.
        guided: the name of the batch that it has prepared the denoiser for.
        chooser: chooses the strategy of this call's runs; None for the session's strategy.
        final: the latents that the scheduler has returned last in this call of the pipeline.
        depth: how many calls of the session's pipeline this thread is in.
        steps: tells the steps where no scheduler does.
        companions: their calls.
    """

    scheduler: Any = None
    run: Run | None = None
    had_run: bool = False
    context: str | None = None
    told: StepHint = StepHint()
    batches: Iterator[str] = iter(())
    guided: str | None = None
    chooser: Chooser | None = None
    final: torch.Tensor | None = None
    depth: int = 0

    def __init__(self) -> None:
        self.steps, self.companions = StepsByTimestep(), Companions()


class Runs:
    """The runs of one pipeline, at most one in a thread.

    Args:
        strategy: of the session.
        region_for: makes a strategy's region; None where the session's own serves it.
        emit: takes every decision.
        ended: called with each run that ends, and whether it is complete.
        num_timesteps: gives how many of the scheduler's steps the pipeline takes, where it tells.
        follows: chooses the strategy of each run; None where `strategy` serves any.
    """

    def __init__(
        self,
        strategy: Strategy,
        agreement: Agreement,
        region_for: Callable[[Strategy], Region | None],
        emit: Emit,
        ended: Callable[[Run, bool], None],
        num_timesteps: Callable[[], object],
        follows: Follower | None = None,
    ) -> None:
        self.here = ThreadState()
        """The present thread's state."""
        self.peak_kept_bytes = 0
        """Most bytes of tensors that one run held."""
        self.calls_outside = 0
        """Denoiser calls that belonged to no run and were passed on."""
        self.strategy = strategy
        """Of runs that no chooser chooses another one for."""
        self._agreement, self._region_for, self._emit, self._ended = agreement, region_for, emit, ended
        self._num_timesteps, self._follows = num_timesteps, follows
        self.outside: Chooser | None = None if follows is None else lambda start: follows(self.strategy, None)(start)
        """Chooses the strategy of runs that no call of the pipeline makes; None for `strategy`."""
        self._numbers = itertools.count(1)
        self._expected_steps: int | None = None
        self._said: set[str] = set()
        """Messages logged so far."""

    def expect(self, num_inference_steps: int | None) -> None:
        """Drop this thread's state; the next run has so many steps unless a scheduler says otherwise."""
        if num_inference_steps is not None and not is_whole(num_inference_steps, 1):
            raise field_error("expect", "num_inference_steps", "be a whole number ≥ 1 or None", num_inference_steps)
        self.end()
        self.here.steps.announce()
        self._expected_steps = num_inference_steps

    @contextmanager
    def within_call(
        self, pipeline: Any, args: Sequence[Any], kwargs: Mapping[str, Any], chooser: Chooser | None
    ) -> Iterator[ThreadState]:
        """Enter a call of the pipeline; runs in it follow the chooser, or else the session's strategy."""
        self.end()
        here = self.here
        if chooser is None and self._follows is not None:
            chooser = self._follows(self.strategy, (pipeline, args, kwargs))
        here.had_run, here.chooser, here.final = False, chooser, None
        here.depth += 1
        try:
            yield here
        finally:
            here.depth -= 1
            here.chooser = None
            self.end()

    def advance(self, latents: torch.Tensor | None) -> None:
        """The step of this thread's run is over; the next one starts from `latents`.

        Raises:
            StateError: no run, because no timesteps were set or all steps are done.
        """
        run = self.here.run
        if run is None:
            raise StateError("advance: no run is under way; set the scheduler's timesteps and call the denoiser first")
        run.end_step(latents)
        if run.generation.finished:
            self.end()

    def end(self, *, is_complete: bool = False) -> None:
        """Drop this thread's run and everything it kept. Idempotent."""
        here = self.here
        run, here.run, here.scheduler, here.steps.last, here.guided = here.run, None, None, None, None
        if run is not None:
            if run.kind == "reuse":
                self.peak_kept_bytes = max(self.peak_kept_bytes, run.kept_bytes)
            run.close()
            if run.kind != "shadow":
                self._ended(run, is_complete or run.generation.finished)

    def close(self) -> None:
        """Drop the state of all threads."""
        self.end()
        self.here = ThreadState()

    def enter(
        self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, by_timestep: bool
    ) -> Run | None:
        """The run that a denoiser call belongs to, a new one where it begins one; None where it belongs to none.

        Args:
            by_timestep: whether the call's timestep tells the steps, because there is no scheduler to watch.
        """
        here = self.here
        if here.scheduler is None:
            if here.told.step is not None:
                return self._by_told_step(here.told.step, begins=by_timestep)
            return self._by_timestep(module, timestep_of(module, args, kwargs)) if by_timestep else here.run
        check_agreement(self.strategy.policy, self._agreement, module)
        scheduler, here.scheduler = here.scheduler, None
        # Image-to-image starts in the middle of the timesteps, and some pipelines stop before their end.
        taken = self._num_timesteps()
        begin = getattr(scheduler, "begin_index", None)
        if begin is None:
            begin = 0
            if isinstance(taken, int) and taken < len(scheduler.timesteps):
                # Some schedulers (DDIM) are not told where an image-to-image run begins.
                now, timesteps = timestep_of(module, args, kwargs), scheduler.timesteps.tolist()
                begin = timesteps.index(now) if now in timesteps else 0
        levels = noise_levels(scheduler)[begin:]
        total = taken if isinstance(taken, int) and 0 < taken <= len(levels) else len(levels)
        run = self._begin(total, levels, scheduler, shape=_shape_of(args, kwargs))
        run.told = here.told.step
        return run

    def _by_told_step(self, now: int, *, begins: bool) -> Run | None:
        """The run that a call at the named step belongs to; a step behind the last one begins another."""
        run = self.here.run
        if run is not None and run.told is not None and now >= run.told:
            for _ in range(now - run.told):
                run.next_step()
            run.told = now
            if not run.generation.finished:
                return run
        if not begins:
            # A scheduler was told the steps, and the pipeline goes through more of them, or through them again.
            return run
        self.end(is_complete=True)
        run = self._begin(self.here.told.total or self._expected_steps, ())
        run.told = now
        return run

    def _by_timestep(self, module: torch.nn.Module, now: float | None) -> Run | None:
        if now is None:
            warn_without_timestep(type(unwrapped(module)).__name__)
            return None
        run, belongs_to = self.here.run, self.here.steps.see(now)
        if run is not None:
            if belongs_to == "same step":
                return run
            run.next_step()
            if belongs_to == "next step" and not run.generation.finished:
                return run
            self.end()
            self.here.steps.last = now
        return self._begin(self._expected_steps, ())

    def _begin(
        self, total: int | None, levels: Sequence[NoiseLevel], scheduler: Any = None, *, shape: tuple[int, ...] = ()
    ) -> Run:
        here, start = self.here, RunStart(total=total, levels=levels, scheduler=scheduler, shape=shape)
        chooser = here.chooser if here.depth else self.outside
        chosen = Chosen(strategy=self.strategy) if chooser is None else chooser(start)
        is_shadow = chosen.kind == "shadow"
        generation = Generation(
            chosen.strategy,
            levels,
            total=total,
            agreement=self._agreement,
            number=0 if is_shadow else next(self._numbers),
            emit=None if is_shadow else self._emit,
        )
        generation.outputs.said = self._said
        region = chosen.region or self._region_for(chosen.strategy)
        here.had_run, here.run = True, Run(generation, chosen.kind, region)
        if not is_shadow:
            self._warn(chosen.strategy, generation)
        return here.run

    def _warn(self, strategy: Strategy, generation: Generation) -> None:
        total = generation.total
        caution = None if total is None else strategy.policy.caution(total, generation.noises)
        # Once for each text: a second run of the same length adds nothing.
        if caution is not None and caution not in self._said:
            self._said.add(caution)
            logger.warning("%s", caution)


def _shape_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of the latents that a denoiser is called with, its first tensor; empty where that is none."""
    first = next((each for each in (*args[:1], *kwargs.values()) if isinstance(each, torch.Tensor)), None)
    return () if first is None else tuple(first.shape)
