"""Which run a thread is in: where it begins, that it has gone on, and where it ends.

A run starts when the scheduler's `set_timesteps` is called; no user has to say anything. State is kept per thread, so
pipelines that share a transformer can run at the same time. An engine without a diffusers scheduler tells the number of
steps through `expect`, and a step is over when a call comes with another timestep.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.generation import Emit
from omnireuse.diffusion.reuse.noise import noise_levels
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.timesteps import StepsByTimestep, timestep_of, warn_without_timestep
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import StateError

__all__ = ["Runs"]

logger = logging.getLogger("omnireuse")

MOST_CALLS_A_STEP = 64
"""Far more than any guidance needs: a step with more calls is one whose end nobody tells."""


class _Here(threading.local):
    """Where this thread is."""

    scheduler: Any = None
    """A scheduler whose timesteps were set and whose run has not begun."""
    run: Run | None = None
    served: bool = False
    """Whether there was a run since `watch`."""

    def __init__(self) -> None:
        self.steps = StepsByTimestep()
        """Tells the steps where nobody else does."""


class Runs:
    """The runs of one pipeline, at most one in a thread.

    Args:
        told_steps: gives what the pipeline tells of how many of the scheduler's steps it takes.
        strategy: of every run.
        agreement: how ranks agree.
        emit: takes every decision.
        ended: told each run that ends, and whether it is complete.
    """

    def __init__(
        self,
        told_steps: Callable[[], object],
        strategy: Strategy,
        agreement: Agreement,
        emit: Emit,
        ended: Callable[[Run, bool], None],
    ) -> None:
        self.peak_kept_bytes = 0
        """Most bytes of tensors that one run held."""
        self._told_steps = told_steps
        self._strategy = strategy
        self._agreement = agreement
        self._emit = emit
        self._ended = ended
        self._numbers = itertools.count(1)
        self._expected_steps: int | None = None
        self._cautions: set[str] = set()
        """What has been said already."""
        self._here = _Here()

    @property
    def current(self) -> Run | None:
        """The run of this thread, if one is under way."""
        return self._here.run

    @property
    def served(self) -> bool:
        """Whether there was a run in this thread since `watch`."""
        return self._here.served

    def watch(self) -> None:
        """A generation begins in this thread: drop what an earlier one may have left."""
        self.end()
        self._here.served = False

    def expect(self, num_inference_steps: int | None) -> None:
        """Drop all state; the next run has so many steps unless a scheduler says otherwise, None for not known."""
        self.end()
        self._here.steps.announce()
        self._expected_steps = num_inference_steps

    def announce(self, scheduler: Any) -> None:
        """This scheduler has its timesteps now: the next call of a denoiser begins a run."""
        self._here.scheduler = scheduler

    def complete(self) -> None:
        """The generation of this thread is over, whatever steps its run may have left."""
        if self._here.run is not None:
            self._ended(self._here.run, True)

    def end(self) -> None:
        """Drop this thread's run and everything it kept. Idempotent."""
        here = self._here
        if here.run is not None:
            self.peak_kept_bytes = max(self.peak_kept_bytes, here.run.kept_bytes)
            self._close(here.run)
        here.run = here.scheduler = None
        here.steps.forget()

    def _close(self, run: Run) -> None:
        run.close()
        self._ended(run, run.finished)

    def close(self) -> None:
        """Drop the runs of all threads."""
        self.end()
        self._here = _Here()

    def enter(
        self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, by_timestep: bool
    ) -> Run | None:
        """The run that a call of a denoiser belongs to, a new one where it begins one.

        Args:
            module: the denoiser.
            args: of the call.
            kwargs: of the call.
            by_timestep: whether the call's timestep tells the steps, because there is no scheduler to watch.
        """
        here = self._here
        if here.scheduler is not None:
            scheduler, here.scheduler = here.scheduler, None
            # Image-to-image starts in the middle of the timesteps, and some pipelines stop before their end.
            told = self._told_steps()
            begin = getattr(scheduler, "begin_index", None)
            if begin is None:
                is_part = isinstance(told, int) and told < len(scheduler.timesteps)
                begin = _place_of(timestep_of(module, args, kwargs), scheduler.timesteps) if is_part else 0
            levels = noise_levels(scheduler)[begin:]
            total = told if isinstance(told, int) and 0 < told <= len(levels) else len(levels)
            return self._begin(total, levels)
        if here.run is not None and here.steps.last is None:
            return here.run
        return self._by_timestep(module, timestep_of(module, args, kwargs)) if by_timestep else None

    def _begin(self, total: int | None, levels: Sequence[Any]) -> Run:
        self._here.served = True
        self._here.run = Run(next(self._numbers), self._strategy, self._agreement, total, levels, self._emit)
        self._caution(self._here.run)
        return self._here.run

    def _caution(self, run: Run) -> None:
        # Once a handle for each thing there is to say: a second run of the same length adds nothing.
        if run.total is None:
            return
        caution = self._strategy.policy.caution(run.total, run.generation.noises)
        if caution is not None and caution not in self._cautions:
            self._cautions.add(caution)
            logger.warning("%s", caution)

    def _by_timestep(self, module: torch.nn.Module, now: float | None) -> Run | None:
        if now is None:
            warn_without_timestep(type(unwrapped(module)).__name__)
            return None
        run, told = self._here.run, self._here.steps.see(now)
        if run is not None:
            if told == "same step":
                return run
            run.advance(None)
            if told == "next step" and not run.finished:
                return run
            self._close(run)
        return self._begin(self._expected_steps, ())

    def advance(self, latents: torch.Tensor | None) -> None:
        """The step of this thread's run is over; the next one starts from `latents`.

        Raises:
            StateError: no run, because no timesteps were set or all steps are done.
        """
        run = self._here.run
        if run is None:
            raise StateError("advance: no run is under way; set the scheduler's timesteps and call the denoiser first")
        run.advance(latents)
        if run.finished:
            self.end()

    def stalls(self, run: Run) -> bool:
        """Whether the step goes on for ever, because nobody tells its end; the run is then given up."""
        if run.calls <= MOST_CALLS_A_STEP:
            return False
        self.end()
        return True


def _place_of(now: float | None, timesteps: torch.Tensor) -> int:
    """Where a call's timestep stands among the scheduler's; 0 where it is none of them.

    Some schedulers (DDIM) are not told where an image-to-image run begins.
    """
    places = [place for place, timestep in enumerate(timesteps.tolist()) if timestep == now]
    return places[0] if places else 0
