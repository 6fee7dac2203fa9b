"""The shadows of one configuration: candidates are tried on the measured calls, and evidence decides."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate
from omnireuse.diffusion.calibration.fit import WeightFit
from omnireuse.diffusion.calibration.path import OutputProducts
from omnireuse.diffusion.calibration.plan import Evidence, Plan
from omnireuse.diffusion.calibration.planner import Planner
from omnireuse.diffusion.reuse.forecasters import Blend
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.tuning.full_run import FullRun, decibels, relative_errors
from omnireuse.evaluation.metrics import IDENTICAL_DB, psnr
from omnireuse.pipelines.pictures import Picture

__all__ = ["MeasuredCall", "Shadow", "Shadows", "Trial", "Trials", "Trying", "planned_steps"]

GROWTHS, DISTURBANCE = (2.0, 4.0, 0.0), 0.3
"""What plans assume of errors on their way to the picture (`Planner`): trials decide (``python -m bench tune``)."""
LEAST_GAIN = 4.0
"""dB over the root of the number of pictures, by which a fitted plan must be closer than the untuned default in the
pictures that it was fitted on. On other pictures it loses up to 5 dB of its gain there (``python -m bench tune``)."""
MOST_WORK = 1.0
"""Work of the shadows of one measured call, in full runs."""
FRAMES = 8
"""Frames of a clip that are compared at most."""
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


class Shadow(NamedTuple):
    """What a shadow has made.

    Attributes:
        computed: calls of the denoisers that were made.
        latents: the final latents, one row for each picture.
        pictures: as floats in 0…1; None where the call returns none.
    """

    computed: int
    latents: torch.Tensor
    pictures: Sequence[Picture] | None = None


class Shadows(Protocol):
    """Makes measured calls again beside the pictures. Calls before the first reused step are known of the full run."""

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Shadow:
        """Follow a strategy of region "step", whose first step that is not computed is given."""

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: FixedSchedule) -> Shadow:
        """Fit weights for the steps of a policy along the full run's path, and follow them."""

    def arrive(self, call: MeasuredCall) -> Shadow:
        """The full run once more, without a call of the denoisers."""


@dataclass(kw_only=True)
class Trial:
    """A candidate and what its shadows have shown.

    Attributes:
        candidate: a schedule with its forecaster.
        fit: of the weights; None for a forecaster with a name.
        errors: relative L1 error of the final latents of each picture.
        closeness: PSNR of each picture to the full run's in dB; of its final latents where no pictures are known.
        calls: how many of the measured calls it has followed.
    """

    candidate: Candidate
    fit: WeightFit | None
    errors: list[float] = field(default_factory=list)
    closeness: list[float] = field(default_factory=list)
    calls: int = 0

    @classmethod
    def of_fit(cls, steps: tuple[int, ...], total: int) -> Trial:
        """A schedule of a run of `total` steps, whose weights are fitted."""
        return cls(candidate=Candidate(steps=steps, forecaster=FITTED), fit=WeightFit(steps, total))


class Trying:
    """Tries candidates on the measured calls.

    Args:
        total: steps of a run.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self.runs = 0.0
        """Work of the shadows so far, in full runs."""

    def _cost(self, steps: tuple[int, ...], replayed: int) -> float:
        """Work of one shadow of a schedule, in full runs."""
        before_gap = next((place for place, step in enumerate(steps) if step != place), len(steps))
        return (len(steps) - min(before_gap, replayed)) / self._total

    def _try(
        self,
        trial: Trial,
        calls: Sequence[MeasuredCall],
        shadows: Shadows,
        pictures: Sequence[Sequence[Picture] | None] = (),
    ) -> None:
        """Let a candidate follow the calls that it has not followed.

        Args:
            pictures: of the full runs; empty where latents are compared.
        """
        tells_branches = len({len(call.full.path.shares) for call in calls}) == 1
        policy, fit = trial.candidate.policy(self._total), trial.fit
        for number, call in list(enumerate(calls))[trial.calls :]:
            if fit is None:
                strategy = Strategy(policy=policy, forecaster=Blend())
                made = shadows.follow(call, strategy, trial.candidate.steps_before_gap)
            else:
                # Branches that one call could not tell apart are not told apart at all.
                full = call.full if tells_branches else replace(call.full, path=replace(call.full.path, shares=(1.0,)))
                made = shadows.lead(replace(call, full=full), fit, policy)
            trial.calls += 1
            trial.errors += relative_errors(made.latents, call.full.final)
            trial.closeness += _closeness(made, call, pictures[number] if pictures else None)
            self.runs += made.computed / call.full.calls / self._total


class Trials(Trying):
    """The candidates for one number of computed steps: the untuned default, and schedules whose weights are fitted.

    Args:
        steps: computed steps as the untuned default spreads them.
        reuses: whether the untuned default follows them; it computes every step of a short run.
        noises: share of noise at each step.
        calls: measured so far, at least one; schedules are planned from them.
    """

    def __init__(
        self, steps: tuple[int, ...], *, reuses: bool, noises: tuple[float, ...], calls: Sequence[MeasuredCall]
    ) -> None:
        super().__init__(len(noises))
        self.untuned = Trial(candidate=Candidate(steps=steps, forecaster="blend"), fit=None) if reuses else None
        self.fitted: list[Trial] = []
        self._pictures: list[Sequence[Picture] | None] = []
        """Of the full runs."""
        replayed = min(len(call.full.path.calls) for call in calls)
        left = MOST_WORK - (self._cost(steps, replayed) if reuses else 0.0)
        for planned in (*(planned_steps(calls, noises, len(steps), growth) for growth in GROWTHS), steps):
            cost = self._cost(planned, replayed)
            if cost <= left and all(planned != trial.candidate.steps for trial in self.fitted):
                left -= cost
                self.fitted.append(Trial.of_fit(planned, self._total))

    def run(self, calls: Sequence[MeasuredCall], shadows: Shadows, *, is_whole: bool) -> None:
        """Try all candidates on the calls that they have not followed; `is_whole` says that no more will come."""
        for call in calls[len(self._pictures) :]:
            self._pictures.append(_few_frames(shadows.arrive(call).pictures))
        for trial in (*([] if self.untuned is None else [self.untuned]), *self.fitted):
            self._try(trial, calls, shadows, self._pictures)

    def default_evidence(self) -> Evidence:
        """What is known of the untuned default."""
        errors = () if self.untuned is None else tuple(self.untuned.errors)
        return Evidence(errors=errors, untuned=errors, runs=0.0)

    def plan(self) -> Plan | None:
        """The plan that evidence is for; None where the untuned default stays."""
        if not self.fitted:
            return None
        best = max(self.fitted, key=lambda trial: statistics.fmean(trial.closeness))
        assert best.fit is not None, "it was fitted"
        untuned = [] if self.untuned is None else self.untuned.errors
        if self.untuned is None:
            if max(best.errors) > SHORT_ERROR:
                return None
        else:
            gain = statistics.fmean(best.closeness) - statistics.fmean(self.untuned.closeness)
            if gain < LEAST_GAIN / math.sqrt(len(best.closeness)):
                return None
        return Plan(
            steps=best.candidate.steps,
            forecaster=FITTED,
            weights=best.fit.weights,
            psnr=None,
            held_out=(),
            evidence=Evidence(errors=tuple(best.errors), untuned=tuple(untuned), runs=0.0),
        )


def planned_steps(
    calls: Sequence[MeasuredCall], noises: tuple[float, ...], budget: int, growth: float
) -> tuple[int, ...]:
    """The schedule of so many computed steps with the least error expected (`Planner`)."""
    products = OutputProducts.joined([call.full.products for call in calls])
    return Planner(products, noises, fewest=budget, growth=growth, disturbance=DISTURBANCE).best(budget)


def _closeness(made: Shadow, call: MeasuredCall, full_pictures: Sequence[Picture] | None) -> list[float]:
    pictures = _few_frames(made.pictures)
    if pictures is None or full_pictures is None:
        return decibels(made.latents, call.full.final)
    pairs = zip(pictures, full_pictures, strict=True)
    return [min(psnr(a, b), IDENTICAL_DB) if np.isfinite(a).all() else 0.0 for a, b in pairs]


def _few_frames(pictures: Sequence[Picture] | None) -> list[Picture] | None:
    """The pictures; of a clip a few frames."""
    if pictures is None:
        return None
    return [each[:: -(-len(each) // FRAMES)] if each.ndim == 4 else each for each in pictures]
