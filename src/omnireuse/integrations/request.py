"""What reuse keeps of one request of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from omnireuse.diffusion.reuse.generation import Generation
from omnireuse.diffusion.reuse.summary import Promise
from omnireuse.integrations.settings import KEY, Plan

__all__ = ["RequestReuse", "figures_of"]


@dataclass
class RequestReuse:
    """What reuse keeps of one request, in the engine's own state of it: it is freed with the request.

    Attributes:
        plan: what the request follows.
        generation: its state; None where the request computes every step.
        computed, reused: steps so far.
        chunk: of a streaming request, whose chunks are denoised one after the other.
        first: the step that its generation began with.
        failures: how often something of the request failed, and it went on without reuse.
    """

    plan: Plan
    generation: Generation | None
    computed: int = 0
    reused: int = 0
    chunk: int = 0
    first: int = 0
    failures: int = 0

    def is_at(self, chunk: int, step: int) -> bool:
        """Whether this step follows what is known. An engine may begin a chunk, or go back to an earlier step."""
        if self.chunk != chunk:
            return False
        return self.generation is None or self.first + self.generation.index == step

    def figures(self) -> dict[str, float]:
        """What the response's metrics say."""
        found = figures_of(self.plan.promise, self.computed, self.reused)
        if self.plan.tuned:
            found[f"{KEY}_tuned"] = 1.0
        if self.failures:
            found[f"{KEY}_failures"] = float(self.failures)
        return found


def figures_of(promise: Promise | None, computed: int, reused: int) -> dict[str, float]:
    """The metrics of a response: numbers of steps, and the mean PSNR in dB that a profile expects."""
    known = {"steps_computed": float(computed), "steps_reused": float(reused)}
    if promise is not None and promise.but is None:
        known["expected_psnr_db"] = promise.expected
    return {f"{KEY}_{name}": figure for name, figure in known.items()}
