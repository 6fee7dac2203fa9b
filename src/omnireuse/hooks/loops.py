"""One sampling loop as a state machine: it is told what happens, and returns the run that this belongs to or ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from omnireuse.hooks.companions import Companions
from omnireuse.hooks.parts import Guided
from omnireuse.hooks.run import Chooser, Run
from omnireuse.hooks.steps import Asked, Begin, Steps

__all__ = ["Loop", "Loops"]


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

    def end(self) -> Run | None:
        """Forget what is known of the loop; returns the run that ends with it, if one is under way."""
        self.steps.forget()
        self.guided.batch = None
        run, self.run = self.run, None
        return run


class Loops(threading.local):
    """The loops of one thread: those of the calls under way, the innermost last, and a user's own."""

    def __init__(self) -> None:
        self.own, self.calls = Loop(), list[Loop]()
        self.final: torch.Tensor | None = None
        """The latents of the latest call of the pipeline."""
