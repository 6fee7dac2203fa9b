"""The shadows of one configuration: candidates are tried on the measured calls, and evidence decides."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate
from omnireuse.diffusion.calibration.fit import WeightFit
from omnireuse.diffusion.calibration.path import OutputProducts
from omnireuse.diffusion.calibration.plan import Evidence, Plan
from omnireuse.diffusion.calibration.planner import Planner
from omnireuse.diffusion.reuse.forecasters import Blend
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.tuning.full_run import FullRun, relative_errors

__all__ = ["MeasuredCall", "Shadows", "Trial", "Trials"]

GROWTH, DISTURBANCE = 0.0, 0.3
"""What plans assume of errors on their way (`Planner`); both are of little weight where trials decide."""
LEAST_GAIN = 4.0
"""dB over the root of the number of pictures, by which a fitted plan must be closer than the untuned default in the
pictures that it was fitted on. On other pictures it loses up to 3 dB of its gain there (``python -m bench tune``)."""

SHORT_ERROR = 0.05
"""Largest error that a plan may leave in a measured picture where the untuned default computes every step."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCall:
    """A call whose run was measured, and that can be made again.

    Attributes:
        replay: from which the host makes the call again.
        full: what was measured.
    """

    replay: Any
    full: FullRun


class Shadows(Protocol):
    """Makes measured calls again beside the pictures. Both give the computed calls of the shadow and its final latents.

    Calls before the first reused step are known of the full run.
    """

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> tuple[int, torch.Tensor]:
        """Follow a strategy of region "step", whose first step that is not computed is given."""

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: FixedSchedule) -> tuple[int, torch.Tensor]:
        """Fit weights for the steps of a policy along the full run's path, and follow them."""


@dataclass(kw_only=True)
class Trial:
    """A candidate and what its shadows have shown.

    Attributes:
        candidate: a schedule with its forecaster.
        fit: of the weights; None for a forecaster with a name.
        errors: relative L1 error of the final latents of each picture.
        calls: how many of the measured calls it has followed.
    """

    candidate: Candidate
    fit: WeightFit | None
    errors: list[float] = field(default_factory=list)
    calls: int = 0

    @property
    def decibels(self) -> float:
        """Mean of the errors in dB, below 0; less is better."""
        return statistics.fmean(20 * math.log10(min(max(error, 1e-9), 1e3)) for error in self.errors)


class Trials:
    """The candidates for one number of computed steps.

    Args:
        steps: computed steps as the untuned default spreads them.
        reuses: whether the untuned default follows them; it computes every step of a short run.
        noises: share of noise at each step.
    """

    def __init__(self, steps: tuple[int, ...], *, reuses: bool, noises: tuple[float, ...]) -> None:
        self._noises = noises
        self._budget, self._total = len(steps), len(noises)
        self.untuned = Trial(candidate=Candidate(steps=steps, forecaster="blend"), fit=None) if reuses else None
        self.fitted = [self._new(steps)]
        self.runs = 0.0
        """Work of the shadows so far, in full runs."""

    def _new(self, steps: tuple[int, ...]) -> Trial:
        return Trial(candidate=Candidate(steps=steps, forecaster=FITTED), fit=WeightFit(steps, self._total))

    def try_default(self, calls: Sequence[MeasuredCall], shadows: Shadows) -> None:
        """Try what needs no plan on the calls that it has not followed."""
        for trial in (self.untuned, self.fitted[0]):
            if trial is not None:
                self._try(trial, calls, shadows)

    def try_plan(self, calls: Sequence[MeasuredCall], shadows: Shadows, allowance: float) -> None:
        """Plan a schedule from all calls, and try it where all its shadows take no more work than this."""
        products = OutputProducts.joined([call.full.products for call in calls])
        planner = Planner(products, self._noises, fewest=self._budget, growth=GROWTH, disturbance=DISTURBANCE)
        trial = self._new(planner.best(self._budget))
        is_new = trial.candidate.steps != self.fitted[0].candidate.steps
        if is_new and self.cost(trial, calls) <= allowance:
            self.fitted.append(trial)
            self._try(trial, calls, shadows)

    def cost(self, trial: Trial, calls: Sequence[MeasuredCall]) -> float:
        """Work of a candidate's shadows of these calls, in full runs."""
        replayed = [min(trial.candidate.steps_before_gap, len(call.full.path.calls)) for call in calls]
        return sum(len(trial.candidate.steps) - saved for saved in replayed) / self._total

    def _try(self, trial: Trial, calls: Sequence[MeasuredCall], shadows: Shadows) -> None:
        tells_branches = len({len(call.full.path.shares) for call in calls}) == 1
        for call in calls[trial.calls :]:
            computed, latents = self._follow(trial, call, shadows, tells_branches)
            trial.calls += 1
            trial.errors += relative_errors(latents, call.full.final)
            self.runs += computed / call.full.calls / self._total

    def _follow(
        self, trial: Trial, call: MeasuredCall, shadows: Shadows, tells_branches: bool
    ) -> tuple[int, torch.Tensor]:
        policy, fit = trial.candidate.policy(self._total), trial.fit
        if fit is None:
            strategy = Strategy(policy=policy, forecaster=Blend())
            return shadows.follow(call, strategy, trial.candidate.steps_before_gap)
        # Branches that one call could not tell apart are not told apart at all.
        full = call.full if tells_branches else replace(call.full, path=replace(call.full.path, shares=(1.0,)))
        return shadows.lead(replace(call, full=full), fit, policy)

    def default_evidence(self) -> Evidence:
        """What is known of the untuned default."""
        errors = () if self.untuned is None else tuple(self.untuned.errors)
        return Evidence(errors=errors, untuned=errors, runs=0.0)

    def plan(self) -> Plan | None:
        """The plan that evidence is for; None where the untuned default stays."""
        best = min(self.fitted, key=lambda trial: trial.decibels)
        assert best.fit is not None, "it was fitted"
        untuned = [] if self.untuned is None else self.untuned.errors
        if self.untuned is None and max(best.errors) > SHORT_ERROR:
            return None
        least = LEAST_GAIN / math.sqrt(len(best.errors))
        if self.untuned is not None and self.untuned.decibels - best.decibels < least:
            return None
        return Plan(
            steps=best.candidate.steps,
            forecaster=FITTED,
            weights=best.fit.weights,
            psnr=None,
            held_out=(),
            evidence=Evidence(errors=tuple(best.errors), untuned=tuple(untuned), runs=0.0),
        )
