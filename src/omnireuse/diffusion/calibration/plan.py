"""A plan of a profile: one schedule, what forecasts the other steps, and the quality that it has shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from itertools import pairwise

from omnireuse.diffusion.reuse.forecasters import Fitted, forecaster_named
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.records import Record

__all__ = ["FEWEST_HELD_OUT", "Evidence", "Plan"]

FEWEST_HELD_OUT = 3
"""Held-out prompts that a promise needs: with fewer, Student's t gives no useful bound."""


class Evidence(Record, frozen=True, kw_only=True):
    """What tuning has seen of a plan.

    Attributes:
        errors: relative L1 error of the final latents of each measured picture.
        untuned: the same with the untuned default; empty where that computes every step.
        runs: work of full runs and shadows, in full runs of one call.
    """

    errors: tuple[float, ...]
    untuned: tuple[float, ...]
    runs: float


class Plan(Record, frozen=True, kw_only=True):
    """One schedule and its quality.

    Attributes:
        steps: the steps that compute, with the first.
        forecaster: name of the forecaster for the others, or "fitted".
        weights: of a "fitted" one, for each branch of guidance and each step of the run; one set serves all branches.
        psnr: mean PSNR to the full run in dB on the prompts for the search; None after tuning, which compares latents.
        held_out: PSNR of each held-out prompt; empty where an interrupt came before.
        evidence: what tuning has seen of it; None after a calibration.
    """

    steps: tuple[int, ...]
    forecaster: str
    weights: tuple[tuple[tuple[float, ...], ...], ...] = ()
    psnr: float | None
    held_out: tuple[float, ...]
    evidence: Evidence | None = None

    def strategy(self, coordinates: tuple[float, ...], plans: Iterable[Plan] = ()) -> Strategy:
        """The strategy that follows the plan.

        Args:
            coordinates: those of the profile.
            plans: the other plans of the profile, which help to carry this one over to other runs.
        """
        total = len(coordinates)
        noises = coordinates if all(before >= after for before, after in pairwise(coordinates)) else None
        others = [plan for plan in plans if plan != self and plan.weights and len(plan.weights) == len(self.weights)]
        policy = FixedSchedule(
            steps=self.steps,
            made_for=total,
            made_for_noises=noises,
            shorter=tuple(plan.steps for plan in others if len(plan.steps) < len(self.steps)),
            compute_last=False,
        )
        forecaster = (
            Fitted(
                coordinates=coordinates,
                weights=self.weights,
                computed=self.steps,
                others=tuple((plan.steps, plan.weights) for plan in others),
            )
            if self.weights
            else forecaster_named(self.forecaster)
        )
        return Strategy.where_it_fits(policy, forecaster)

    @property
    def promised(self) -> float:
        """PSNR in dB that the mean over new prompts reaches in about 19 of 20 cases.

        This is the lower bound of the mean by Student's t, one-sided at 95 %; −∞ with fewer held-out prompts than
        `FEWEST_HELD_OUT`.
        """
        if len(self.held_out) < FEWEST_HELD_OUT:
            return -math.inf
        mean = math.fsum(self.held_out) / len(self.held_out)
        spread = math.fsum((each - mean) ** 2 for each in self.held_out) / (len(self.held_out) - 1)
        return mean - _student_t(len(self.held_out) - 1) * math.sqrt(spread / len(self.held_out))

    @property
    def expected(self) -> float:
        """Mean PSNR in dB of the held-out prompts; NaN without any."""
        return math.fsum(self.held_out) / len(self.held_out) if self.held_out else math.nan


def _student_t(freedom: int) -> float:
    """The 95 % quantile of Student's t for at least two degrees of freedom, within 2 %.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    z = statistics.NormalDist().inv_cdf(0.95)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
