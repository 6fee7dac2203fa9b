"""Error control: the distance between computed steps follows from the error of the last forecasts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from omnireuse.base.validation import Count, Factor, Positive, Tolerance, check_fields, finite
from omnireuse.policies.base import StepView, ThresholdPolicy

__all__ = ["ErrorControl"]


class _Computed(NamedTuple):
    """The last computed step: its index, its coordinate, and the distance from the computed step before it."""

    step: int
    coordinate: float
    distance: float | None


@dataclass(frozen=True, kw_only=True)
class ErrorControl(ThresholdPolicy):
    """Reuse as long as the forecast is expected to stay within a tolerance.

    A computed step shows the error of the forecast for it, over a known distance. The error of a forecast of order p
    grows with the distance to the power p + 1, so the expected error of a later step is
    measured · (distance now / distance then)^(p+1): the step-size control of ODE solvers (Hairer, Nørsett and Wanner,
    "Solving Ordinary Differential Equations I", II.4). Distances are those of the strategy's axis; p is the
    forecaster's order, 2 at most.

    The error is that of x0, relative to x0. Latents with a share s of noise move by (x − x0) / s for each unit of s, so
    the bound is error / s ≤ scale · tolerance ("error per unit step"). If the scheduler's algebra is not known, the
    error is that of the output, and s is 1.

    The errors of a run's steps add up in the final latents, and computed steps correct most of them. `scale` says how
    wide the bound on each step may be therefore. It is chosen on the reference cases, in region "step" with `Blend`,
    such that nine of ten final latents are within the tolerance in each case (``python -m bench tolerance``). It is no
    guarantee for a single prompt.

    Args:
        tolerance: relative L1 error of the final latents that nine of ten runs stay within, above 0 and below 1: 0.05
            is 5 % of them. Raising it reuses more.
        max_gap: most steps from one computed step to the next, ≥ 1.
        safety: share of the tolerance that is aimed at, in (0, 1].
        scale: allowed error per unit step for each unit of tolerance, > 0.
        growth: longest distance of a forecast, as a multiple of the distance that the last error was measured over,
            ≥ 1.

    Raises:
        ConfigError: a value out of range.
    """

    tolerance: Tolerance = 0.05
    max_gap: Count = 30
    safety: Annotated[float, finite("be above 0 and at most 1", lambda x: 0 < x <= 1)] = 0.8
    scale: Positive = 4.0
    growth: Factor = 4.0

    needs_error: ClassVar[bool] = True
    threshold_name: ClassVar[str] = "tolerance"

    def __post_init__(self) -> None:
        check_fields(self)

    def measured(self, state: _Computed | None, view: StepView) -> float | None:
        """The tolerance at which this step would be reused."""
        bound = self.safety * self.scale * (1.0 if view.noise is None else view.noise)
        error = self._expected_error(state, view)
        return None if error is None or not bound else error / bound

    def wants_reuse(self, state: _Computed | None, view: StepView) -> bool:
        error = self._expected_error(state, view)
        if state is None or error is None or view.index - state.step >= self.max_gap:
            return False
        return error <= self.safety * self.scale * self.tolerance * (1.0 if view.noise is None else view.noise)

    def after(self, state: _Computed | None, view: StepView, reused: bool) -> _Computed | None:
        if reused:
            return state
        here = _coordinate(view)
        return _Computed(view.index, here, None if state is None else abs(here - state.coordinate))

    def _expected_error(self, state: _Computed | None, view: StepView) -> float | None:
        if state is None or not state.distance or view.error is None or not math.isfinite(view.error):
            return None
        ratio = abs(_coordinate(view) - state.coordinate) / state.distance
        # The bound on growth ignores that a schedule's step width varies a little.
        if ratio > self.growth * 1.05:
            return None
        # Forecasters that choose among orders seldom gain by more than the second.
        return float(view.error * ratio ** (min(view.order, 2) + 1))


def _coordinate(view: StepView) -> float:
    return float(view.index) if view.coordinate is None else view.coordinate
