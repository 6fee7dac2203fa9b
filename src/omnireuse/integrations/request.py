"""What reuse keeps of one request of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from omnireuse.diffusion.reuse.generation import Generation
from omnireuse.integrations.settings import KEY, Plan

__all__ = ["RequestReuse"]


@dataclass
class RequestReuse:
    """What reuse keeps of one request, in the engine's own state of it: it is freed with the request.

    Attributes:
        plan: what the request follows.
        generation: its state; None where the request computes every step.
        computed, reused: steps so far.
    """

    plan: Plan
    generation: Generation | None
    computed: int = 0
    reused: int = 0

    def figures(self) -> dict[str, float]:
        """What the response's metrics say."""
        known = {"steps_computed": float(self.computed), "steps_reused": float(self.reused)}
        if self.plan.promise is not None and self.plan.promise.but is None:
            known["expected_psnr_db"] = self.plan.promise.expected
        return {f"{KEY}_{name}": figure for name, figure in known.items()}
