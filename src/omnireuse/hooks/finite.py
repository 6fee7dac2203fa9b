"""A look at the latents of a run at its end: did they stay finite, and after which step were they first not?"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from omnireuse.errors import StateError
from omnireuse.hooks.run import Run

if TYPE_CHECKING:
    from omnireuse.summary.counters import Stats

__all__ = ["check_finite"]

logger = logging.getLogger("omnireuse")


def check_finite(run: Run, stats: Stats) -> None:
    """Look at the latents of a run that is done; one that is not finite is counted apart. Cost: one read.

    A model that computes something that is not finite does so without reuse, too: that is a warning.

    Raises:
        StateError: a forecast is the first that is not finite.
    """
    step, number, by = _first_broken(run.magnitudes), run.generation.number, type(run.generation.forecaster).__name__
    if step is None:
        return
    stats.mark_broken(number)
    if any(event.run == number and event.step == step and event.reused for event in stats.events):
        raise StateError(
            f"the latents of this run are NaN or infinite from step {step} on, which {by} forecast, unless "
            "a callback changed them there; compute more steps, or give another forecaster"
        )
    logger.warning(
        "the latents of this run are NaN or infinite from step %d on, which was computed and not forecast: see whether "
        "they are with policy='never', too, and look at the model's dtype and inputs",
        step,
    )


def _first_broken(magnitudes: Sequence[tuple[int, torch.Tensor]]) -> int | None:
    """The step after which the latents were first not finite; None where they always were."""
    if not magnitudes:
        return None
    device = magnitudes[0][1].device
    values = torch.stack([value.to(device, torch.float32) for _, value in magnitudes]).tolist()
    return next((step for (step, _), value in zip(magnitudes, values, strict=True) if not math.isfinite(value)), None)
