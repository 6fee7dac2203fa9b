"""TeaCache: reuse while the accumulated, rescaled change of the signal stays below a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from omnireuse.base.validation import Positive, check_fields, check_finite_list
from omnireuse.policies.base import StepView, ThresholdPolicy

__all__ = ["TeaCache", "TeaCacheState"]


class TeaCacheState(NamedTuple):
    """The sum of the rescaled relative changes of the signal since the last computed step of a branch."""

    accumulated_rel_l1_distance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TeaCache(ThresholdPolicy):
    """Reuse while the accumulated estimate of the output's change stays below a threshold.

    Source: "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model", arXiv 2411.19108, section 3.3.

    Args:
        rel_l1_thresh: accumulated relative L1 change at which a step computes, > 0. Raising it reuses more.
        coefficients: five coefficients of the degree-4 polynomial from signal change to output change, highest power
            first.

    Raises:
        ConfigError: a threshold that is not finite and positive; not exactly five finite coefficients.
    """

    rel_l1_thresh: Positive = 0.2
    coefficients: tuple[float, ...] = (0.0, 0.0, 0.0, 1.0, 0.0)

    needs_drift: ClassVar[bool] = True
    threshold_name: ClassVar[str] = "rel_l1_thresh"

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "coefficients", check_finite_list(self, "coefficients", self.coefficients, length=5))

    def start(self) -> TeaCacheState:
        return TeaCacheState()

    def measured(self, state: TeaCacheState, view: StepView) -> float | None:
        if view.drift is None:
            return None
        rescaled = 0.0
        for coefficient in self.coefficients:
            rescaled = rescaled * view.drift + coefficient
        total = state.accumulated_rel_l1_distance + abs(rescaled)
        return total if math.isfinite(total) else math.inf

    def after(self, state: TeaCacheState, view: StepView, reused: bool) -> TeaCacheState:
        total = self.measured(state, view) if reused else None
        return self.start() if total is None else TeaCacheState(total)
