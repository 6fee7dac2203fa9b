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
        shares: by how much one unit of x0, at each of them, has moved the latents at the computed step.
        gain: by how much the computed step's x0 must change to do what moving its latents by one unit would; above 0.
    """

    coordinates: tuple[float, ...]
    shares: tuple[float, ...]
    gain: float

    @classmethod
    def between(cls, coordinates: Sequence[float], ratios: Sequence[float | None]) -> Gap | None:
        """The gap; None where a step's arithmetic is not known, or the computed step leaves no noise.

        Args:
            coordinates: of the reused steps.
            ratios: r of each step, the computed one last: the scheduler goes from x to x0 + r · (x − x0)
                (`NoiseLevel.step_ratio`).
        """
        known = [ratio for ratio in ratios if ratio is not None and 0 <= ratio < 1]
        if not coordinates or len(known) != len(coordinates) + 1 or not known[-1]:
            return None
        *reused, last = known
        shares = tuple((1 - ratio) * math.prod(reused[place + 1 :]) for place, ratio in enumerate(reused))
        return cls(coordinates=tuple(coordinates), shares=shares, gain=last / (1 - last))
