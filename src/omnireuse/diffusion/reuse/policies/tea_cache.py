"""TeaCache: reuse while the accumulated, rescaled change of the signal stays under a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from omnireuse.diffusion.reuse.policy import Limit, Policy, StepView
from omnireuse.diffusion.reuse.validation import check_finite_list, check_positive

__all__ = ["TeaCache", "TeaCacheState"]

IDENTITY = (0.0, 0.0, 0.0, 1.0, 0.0)


class TeaCacheState(NamedTuple):
    """What was accumulated since the last computed step of a branch.

    Attributes:
        accumulated_rel_l1_distance: sum of the rescaled relative changes of the signal.
    """

    accumulated_rel_l1_distance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TeaCache(Policy):
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

    def __post_init__(self) -> None:
        check_positive(self, "rel_l1_thresh")
        object.__setattr__(self, "coefficients", check_finite_list(self, "coefficients", self.coefficients, length=5))

    @property
    def limit(self) -> Limit:
        """`rel_l1_thresh`."""
        return Limit("rel_l1_thresh", self.rel_l1_thresh)

    def measured(self, state: TeaCacheState, view: StepView) -> float | None:
        """The rescaled change since the last computed step."""
        return None if view.drift is None else self._accumulate(state, view.drift).accumulated_rel_l1_distance

    def start(self) -> TeaCacheState:
        """Nothing is accumulated yet."""
        return TeaCacheState()

    def wants_reuse(self, state: TeaCacheState, view: StepView) -> bool:
        """Whether the change accumulated since the last computed step is still under the threshold."""
        if view.drift is None:
            return False
        return self._accumulate(state, view.drift).accumulated_rel_l1_distance < self.rel_l1_thresh

    def after(self, state: TeaCacheState, view: StepView, reused: bool) -> TeaCacheState:
        """A computed step begins anew."""
        return self._accumulate(state, view.drift) if reused and view.drift is not None else self.start()

    def _accumulate(self, state: TeaCacheState, drift: float) -> TeaCacheState:
        rescaled = 0.0
        for coefficient in self.coefficients:
            rescaled = rescaled * drift + coefficient
        total = state.accumulated_rel_l1_distance + abs(rescaled)
        return TeaCacheState(total if math.isfinite(total) else math.inf)
