"""The reused steps between two computed ones, and how to undo what their forecasts did to the latents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Gap"]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Reused steps, seen from the computed step that ends them.

    Attributes:
        coordinates: of the reused steps.
        shares: by how much one unit of the value, x0 or velocity, at each of them has moved the latents at the computed
            step.
        gain: by how much the computed step's value must change to do what moving its latents by one unit would.
        left: noise at the computed step as a share of that at the computed step before the gap.
        target: "x0" or "velocity".
    """

    coordinates: tuple[float, ...]
    shares: tuple[float, ...]
    gain: float
    left: float
    target: str

    @classmethod
    def between(
        cls, target: str, coordinates: Sequence[float], steps: Sequence[tuple[float, float] | None], left: float = 1.0
    ) -> Gap | None:
        """The gap, from `NoiseLevel.step` or `velocity_step` of each step, the computed one last; None if a step's
        arithmetic is not known, or nothing of the computed step's latents remains."""
        known = [step for step in steps if step is not None and step[0] and step[1] >= 0]
        if not coordinates or len(known) != len(coordinates) + 1 or not known[-1][1]:
            return None
        *reused, (of_value, of_sample) = known
        kept = [step[1] for step in reused]
        shares = tuple(step[0] * math.prod(kept[place + 1 :]) for place, step in enumerate(reused))
        return cls(coordinates=tuple(coordinates), shares=shares, gain=of_sample / of_value, left=left, target=target)
