"""Whether the latents of a run stayed finite, and after which step they first were not: one look at its end."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import torch

from omnireuse.errors import StateError
from omnireuse.loop.generation import Generation

if TYPE_CHECKING:
    from omnireuse.summary.counters import Stats

__all__ = ["Magnitudes", "check_finite"]

logger = logging.getLogger("omnireuse")


class Magnitudes:
    """The largest magnitude of the latents after each step, left on their device until the run has ended."""

    def __init__(self) -> None:
        self._found: list[tuple[int, torch.Tensor]] = []

    def note(self, step: int, latents: torch.Tensor | None) -> None:
        """The latents after a step. Cost: one reduction, and nothing is read back."""
        if latents is None or not latents.is_floating_point() or not latents.numel() or latents.is_meta:
            return
        self._found.append((step, torch.linalg.vector_norm(latents.detach(), math.inf)))

    def first_broken(self) -> int | None:
        """The step after which the latents were first not finite; None where they always were. Cost: one read."""
        if not self._found:
            return None
        device = self._found[0][1].device
        values = torch.stack([value.to(device, torch.float32) for _, value in self._found]).tolist()
        return next(
            (step for (step, _), value in zip(self._found, values, strict=True) if not math.isfinite(value)), None
        )


def check_finite(magnitudes: Magnitudes, generation: Generation, stats: Stats) -> None:
    """Look at the latents of a run that is done; one that is not finite is counted apart.

    A model that computes something that is not finite does so without reuse, too: that is a warning.

    Raises:
        StateError: a forecast is the first that is not finite.
    """
    step, number = magnitudes.first_broken(), generation.number
    if step is None:
        return
    stats.mark_broken(number)
    if any(event.run == number and event.step == step and event.reused for event in stats.events):
        raise StateError(
            f"the latents of this run are NaN or infinite from step {step} on, which "
            f"{type(generation.forecaster).__name__} forecast; compute more steps, or give another forecaster"
        )
    logger.warning(
        "the latents of this run are NaN or infinite from step %d on, which was computed and not forecast: look at the "
        "model's dtype and inputs",
        step,
    )
