"""Error control: the distance between computed steps follows from how wrong the forecasts have just been."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from omnireuse.diffusion.reuse.policy import Limit, Policy, StepView
from omnireuse.diffusion.reuse.validation import check_at_least, check_positive, field_error

__all__ = ["ErrorControl"]


class _State(NamedTuple):
    step: int
    """The last computed step."""
    at: float
    """Its coordinate."""
    distance: float | None
    """How far before it the forecast started whose error was measured there; None at the first."""


@dataclass(frozen=True, kw_only=True)
class ErrorControl(Policy):
    """Reuse as far as the forecast is expected to stay within a tolerance.

    A computed step shows how wrong the forecast for it was, over a known distance. The error of a forecast of order p
    grows with the distance to the power p + 1, so at any later step the expected error is
    measured · (distance now / distance then)^(p+1): the step-size control of solvers for differential equations
    (Hairer, Nørsett and Wanner, "Solving Ordinary Differential Equations I", II.4), asked step by step. Distances are
    those of the strategy's axis, p is the forecaster's order, 2 at most.

    The error is that of the denoised sample x0, relative to x0, whatever is remembered: in region "step" after
    guidance, in region "call" of each branch by itself. Latents with a share s of noise move by (x − x0) / s for each
    unit of s, so a step that takes Δs off the noise passes on Δs / s of its error in x0. It is held to
    error / s ≤ scale · tolerance ("error per unit step"). Where the scheduler's algebra is not known, the error is that
    of the output, and s is 1.

    Computed steps correct most of what reused steps leave, so the bound on each of them is far wider than what reaches
    the final latents. `scale` is how much wider. It is calibrated on the reference cases, in region "step" with
    `BestOrder`, such that the median error of the final latents lies between a third of the tolerance and the tolerance
    (``python -m bench tolerance``). It is no guarantee for a single prompt, or for another model.

    Args:
        tolerance: relative L1 error that reuse may leave in the final latents, above 0 and below 1: 0.05 is 5 % of
            them. Raising it reuses more.
        max_gap: most steps from one computed step to the next, ≥ 1.
        safety: share of the tolerance that is aimed at, in (0, 1].
        scale: error per unit step that is allowed for each unit of tolerance, > 0.
        growth: most that a forecast may reach, as a multiple of the distance over which the last error was measured,
            ≥ 1.

    Raises:
        ConfigError: a value out of range.
    """

    tolerance: float = 0.05
    max_gap: int = 30
    safety: float = 0.8
    scale: float = 16.5
    growth: float = 4.0

    needs_error: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "tolerance")
        if self.tolerance >= 1:
            raise field_error(self, "tolerance", "be below 1", do="it is a share, not a percentage: 0.05 is 5 %")
        check_positive(self, "scale")
        check_at_least(self, "max_gap", 1)
        check_positive(self, "safety")
        if self.safety > 1:
            raise field_error(self, "safety", "be above 0 and at most 1")
        check_positive(self, "growth")
        if self.growth < 1:
            raise field_error(self, "growth", "be a finite number of at least 1")

    @property
    def limit(self) -> Limit:
        """`tolerance`."""
        return Limit("tolerance", self.tolerance)

    def measured(self, state: _State | None, view: StepView) -> float | None:
        """The tolerance at which this step would be reused, as far as its error is known."""
        if state is None or not state.distance or view.error is None or not math.isfinite(view.error):
            return None
        ratio, share = abs(_at(view) - state.at) / state.distance, 1.0 if view.noise is None else view.noise
        if not share or ratio > self.growth * 1.05:
            return None
        return _expected(view, ratio) / (self.safety * self.scale * share)

    def start(self) -> None:
        """Nothing was computed yet."""
        return

    def wants_reuse(self, state: _State | None, view: StepView) -> bool:
        """Whether the forecast for this step is expected to be good enough."""
        if state is None or not state.distance or view.error is None or not math.isfinite(view.error):
            return False
        ratio = abs(_at(view) - state.at) / state.distance
        # A step's width varies a little along a schedule; the growth bound is not meant to notice that.
        near = ratio <= self.growth * 1.05 and view.index - state.step < self.max_gap
        share = 1.0 if view.noise is None else view.noise
        return near and _expected(view, ratio) <= self.safety * self.scale * self.tolerance * share

    def after(self, state: _State | None, view: StepView, reused: bool) -> _State | None:
        """A computed step is where the next distances start."""
        if reused:
            return state
        return _State(view.index, _at(view), None if state is None else abs(_at(view) - state.at))


def _expected(view: StepView, ratio: float) -> float:
    # Forecasters that choose among orders seldom gain by more than the second.
    return (view.error or 0.0) * ratio ** (min(view.order, 2) + 1)


def _at(view: StepView) -> float:
    return float(view.index) if view.at is None else view.at
