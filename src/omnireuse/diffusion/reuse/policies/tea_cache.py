"""TeaCache: reuse while the accumulated, rescaled change of the signal stays under a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from omnireuse.diffusion.reuse.policy import StepView
from omnireuse.diffusion.reuse.validation import check_finite_list, check_positive

__all__ = ["TeaCache"]

IDENTITY = (0.0, 0.0, 0.0, 1.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class TeaCache:
    """Reuse while the accumulated estimate of the output's change stays under a threshold.

    Source: "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model", arXiv 2411.19108, section 3.3.

    Args:
        rel_l1_thresh: accumulated relative L1 change at which a step computes, > 0. Raising it reuses more.
        coefficients: five coefficients of the degree-4 polynomial from signal change to output change, highest power
            first.

    Raises:
        ConfigError: a threshold that is not finite and positive; not exactly five finite coefficients.
    """

    rel_l1_thresh: float = 0.2
    coefficients: tuple[float, ...] = IDENTITY

    needs_drift: ClassVar[bool] = True
    needs_error: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive(self, "rel_l1_thresh")
        object.__setattr__(self, "coefficients", check_finite_list(self, "coefficients", self.coefficients, length=5))

    def start(self) -> float:
        """The accumulated change: none yet."""
        return 0.0

    def wants_reuse(self, state: float, view: StepView) -> bool:
        """Whether the change accumulated since the last computed step is still under the threshold."""
        return view.drift is not None and self._accumulate(state, view.drift) < self.rel_l1_thresh

    def after(self, state: float, view: StepView, reused: bool) -> float:
        """A computed step starts the account anew."""
        return self._accumulate(state, view.drift) if reused and view.drift is not None else 0.0

    def _accumulate(self, accumulated: float, drift: float) -> float:
        rescaled = 0.0
        for coefficient in self.coefficients:
            rescaled = rescaled * drift + coefficient
        total = accumulated + abs(rescaled)
        return total if math.isfinite(total) else math.inf
