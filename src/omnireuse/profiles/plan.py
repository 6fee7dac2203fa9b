"""A plan of a profile: one schedule, what forecasts the other steps, and the quality that it has shown."""

from __future__ import annotations

import math
from itertools import chain
from typing import Annotated

import msgspec

from omnireuse.base.records import Record
from omnireuse.base.validation import field_error
from omnireuse.forecasters import Fitted, forecaster_named
from omnireuse.loop.strategy import Strategy
from omnireuse.policies import Steps
from omnireuse.policies.base import Schedule
from omnireuse.profiles.coverage import FEWEST, lower_bound

__all__ = ["FEWEST_HELD_OUT", "FITTED", "Evidence", "Plan"]

FEWEST_HELD_OUT = FEWEST
"""Held-out prompts that a promise needs."""
FITTED = "fitted"
"""In place of a forecaster's name: weights that are fitted to the schedule."""
LARGEST_WEIGHT = 1000.0
"""Largest magnitude of a weight. Those that fits have found so far are below 50."""

Step = Annotated[int, msgspec.Meta(ge=0)]
Errors = tuple[Annotated[float, msgspec.Meta(ge=0)], ...]


class Evidence(Record, frozen=True, kw_only=True):
    """What trials of a plan have shown.

    Attributes:
        errors: relative L1 error of the final latents of each measured picture.
        untuned: the same with the untuned default; empty if that computes every step.
        runs: work of full runs and trial runs, in full runs of one call; 0 after a calibration.
        closeness: PSNR of each picture in dB to the full run's; empty after tuning, unless a quality was asked for.
        stays: whether the untuned default, which the errors are of, was taken.
    """

    errors: Errors
    untuned: Errors = ()
    runs: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    closeness: tuple[float, ...] = ()
    stays: bool = False

    @property
    def error(self) -> float:
        """The mean of the errors; NaN without any."""
        return math.fsum(self.errors) / len(self.errors) if self.errors else math.nan


class Plan(Record, frozen=True, kw_only=True):
    """One schedule and its quality.

    Attributes:
        steps: the steps that are computed, with the first.
        forecaster: name of the forecaster for the others, or "fitted".
        weights: of a "fitted" one, for each branch of guidance and each step of the run; one set serves all branches.
        psnr: mean PSNR to the full run in dB on the prompts for the search; None after tuning, which compares latents.
        held_out: PSNR of each held-out prompt; empty if an interrupt came before.
        evidence: of its trials; None without any, and in earlier files of calibrations.
        full_every: of an editing model's computed calls every so many compute the references, 1 for all of them and 0
            for the first alone; None if that was not tried.

    Raises:
        ConfigError: steps that are not in order or lack the first; weights without the name "fitted", or none with it;
            a weight above `LARGEST_WEIGHT`.
    """

    steps: tuple[Step, ...]
    forecaster: str
    weights: tuple[tuple[tuple[float, ...], ...], ...] = ()
    psnr: float | None
    held_out: tuple[float, ...]
    evidence: Evidence | None = None
    full_every: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        if not self.steps or self.steps[0] or list(self.steps) != sorted(set(self.steps)):
            raise field_error(self, "steps", "be numbers of steps in order, from 0 on")
        if (self.forecaster == FITTED) != bool(self.weights):
            raise field_error(self, "forecaster", f"be {FITTED!r} with weights, and only then")
        largest = max(map(abs, chain.from_iterable(chain.from_iterable(self.weights))), default=0.0)
        if largest > LARGEST_WEIGHT:
            raise field_error(self, "weights", f"be at most {LARGEST_WEIGHT:g}", largest)

    def strategy(self, coordinates: tuple[float, ...], elsewhere: Schedule | None = None) -> Strategy:
        """The strategy that follows the plan.

        Args:
            coordinates: those of the profile.
            elsewhere: the schedule of other runs; None if there are none.
        """
        policy = Steps(
            steps=self.steps,
            made_at=None if elsewhere is None else coordinates,
            elsewhere=elsewhere,
            compute_last=False,
        )
        forecaster = (
            Fitted(coordinates=coordinates, weights=self.weights, computed=self.steps)
            if self.weights
            else forecaster_named(self.forecaster)
        )
        return Strategy.where_it_fits(policy, forecaster)

    @property
    def promised(self) -> float:
        """PSNR in dB that at least nine of ten new pictures reach, at a confidence of 95 %: `lower_bound` of the
        held-out prompts; −∞ with fewer of them than `FEWEST_HELD_OUT`."""
        return lower_bound(self.held_out)

    @property
    def expected(self) -> float:
        """Mean PSNR in dB of the held-out prompts; NaN without any."""
        return math.fsum(self.held_out) / len(self.held_out) if self.held_out else math.nan

    @property
    def shown(self) -> tuple[str, str]:
        """`expected` and `promised` as tables have them."""
        return (
            f"{self.expected:.1f} dB" if self.held_out else "not judged",
            f"{self.promised:.1f} dB" if math.isfinite(self.promised) else "none",
        )
