"""One sampling loop as a state machine: it is told what happens, and returns the run that this belongs to or ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from omnireuse.hooks.companions import Companions
from omnireuse.hooks.parts import Guided
from omnireuse.hooks.run import Chooser, Run
from omnireuse.hooks.steps import Asked, Begin, Steps
from omnireuse.loop.events import RunEnded

__all__ = ["Ended", "Loop", "Loops"]


class Ended(NamedTuple):
    """A run that has ended.

    Attributes:
        is_complete: whether all its steps were made.
        broken: the step after which its latents were first not finite; None if they always were.
        event: for the hooks.
    """

    run: Run
    is_complete: bool
    broken: int | None
    event: RunEnded


class Loop:
    """The loop of a call of the pipeline, or all loops of a user's own in a thread.

    Args:
        chooser: chooses the strategy of its runs; None for the session's.
        call: of the pipeline, with its arguments; None for a loop of a user's own.
    """

    def __init__(
        self, chooser: Chooser | None = None, call: tuple[Any, Sequence[Any], Mapping[str, Any]] | None = None
    ) -> None:
        self.chooser, self.call = chooser, call
        self.run: Run | None = None
        """Under way."""
        self.had_run = False
        self.asked = 0
        """Denoiser calls of its runs so far, made or reused."""
        self.context: str | None = None
        """The cache context that the pipeline has entered."""
        self.final: torch.Tensor | None = None
        """The latents that the scheduler has returned last."""
        self.steps, self.companions, self.guided = Steps(in_call=call is not None), Companions(), Guided()

    def place(self, asked: Asked, *, is_watched: bool, expected: int | None, taken: object) -> Run | Begin | None:
        """The run that a denoiser call belongs to, moved on to its step, or the run that begins with it; None for a
        call that belongs to none.

        Args: as `Steps.move`.
        """
        steps, run = self.steps, self.run
        if run is not None and steps.scheduler is None:
            if self.call is None and steps.is_foreign(run, asked):
                return None
            if run.is_stepped:
                return run
        move = steps.move(run, asked, is_watched=is_watched, expected=expected, taken=taken)
        if run is None or not isinstance(move, int):
            return move if isinstance(move, Begin) else None
        for _ in range(move):
            run.next_step()
        return run

    def end(self, *, is_complete: bool = False) -> Ended | None:
        """End the loop, as far as it is known; the run under way ends with it."""
        self.steps.forget()
        self.guided.batch = None
        return self.end_run(is_complete=is_complete)

    def end_run(self, *, is_complete: bool) -> Ended | None:
        """Drop the run and everything it kept; None if there is none, or nobody counts it."""
        run, self.run = self.run, None
        if run is None:
            return None
        generation, kept = run.generation, run.kept_bytes if run.kind == "reuse" else 0
        run.close()
        if run.kind == "shadow":
            return None
        is_complete = is_complete or generation.finished
        broken = run.first_broken() if is_complete else None
        # If timesteps alone tell the steps, the last one ends when another run begins.
        is_whole = is_complete or (not run.is_stepped and run.step >= (generation.total or 0) - 1)
        event = RunEnded(
            run=generation.number,
            outcome="broken" if broken is not None else "whole" if is_whole else "aborted",
            kept_bytes=kept,
            companions=self.companions.take_calls(),
        )
        return Ended(run, is_complete, broken, event)


class Loops(threading.local):
    """The loops of one thread: those of the calls under way, the innermost last, and a user's own."""

    def __init__(self) -> None:
        self.own, self.calls = Loop(), list[Loop]()
        self.final: torch.Tensor | None = None
        """The latents of the latest call of the pipeline."""
