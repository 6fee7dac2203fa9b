"""A profile: what a calibration has found for one pipeline, as a file that a person can read."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec

from omnireuse.diffusion.calibration.measurements import Measurements
from omnireuse.diffusion.calibration.profile_html import profile_html
from omnireuse.diffusion.reuse.forecasters import Fitted, forecaster_named
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.runtime.denoisers import dtype_of, model_name
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Promise
from omnireuse.errors import ConfigError, StateError
from omnireuse.records import Record, as_text, read_record, write_text

__all__ = ["FEWEST_HELD_OUT", "Plan", "Profile", "fingerprint"]

logger = logging.getLogger("omnireuse")

HEAD = {"format": 4}
FEWEST_HELD_OUT = 3
"""Held-out prompts that a promise needs: with fewer, Student's t gives no useful bound."""


class Plan(Record, frozen=True, kw_only=True):
    """One schedule and its quality.

    Attributes:
        steps: the steps that compute, with the first.
        forecaster: name of the forecaster for the others, or "fitted".
        weights: of a "fitted" one, for each branch of guidance and each step of the run; one set serves all branches.
        psnr: mean PSNR to the full run in dB on the prompts for the search.
        held_out: PSNR of each held-out prompt; empty where an interrupt came before.
    """

    steps: tuple[int, ...]
    forecaster: str
    weights: tuple[tuple[tuple[float, ...], ...], ...] = ()
    psnr: float
    held_out: tuple[float, ...]

    def strategy(self, coordinates: tuple[float, ...]) -> Strategy:
        """The strategy that follows the plan, with the coordinates of the profile."""
        total = len(coordinates)
        noises = coordinates if all(before >= after for before, after in pairwise(coordinates)) else None
        policy = FixedSchedule(
            steps=self.steps, made_for=total, made_for_noises=noises, compute_last=self.steps[-1] == total - 1
        )
        forecaster = (
            Fitted(coordinates=coordinates, weights=self.weights, computed=self.steps)
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


class Profile(Record, frozen=True, kw_only=True):
    """The best schedules that were found for a pipeline, one for each number of computed steps.

    Attributes:
        model: class of the denoiser.
        config_digest: of its configuration and its scheduler's.
        scheduler: class of the scheduler.
        num_inference_steps: denoising steps of the runs that were searched.
        coordinates: of each step, as forecasters see it ("at" in the file): the share of noise in the latents, or the
            step's index where the scheduler's noise is not known.
        call: what the pipeline was called with beside the prompts, as text.
        prompts_digest: of all prompts.
        num_prompts: how many were searched with, and how many held out.
        seed: of noise and search.
        created: date.
        versions: of the libraries.
        cost_in_runs: cost of the search in full runs of one prompt.
        complete: False where the search was interrupted; each plan is then the best so far.
        plans: by number of computed steps.
        measured: what else the full runs have shown; None where they were not looked at.
        dtype: what the denoiser computed in, as "bfloat16"; None in a file of a version that did not note it.
    """

    model: str
    config_digest: str
    scheduler: str
    num_inference_steps: int
    coordinates: tuple[float, ...] = msgspec.field(name="at")
    call: Mapping[str, str]
    prompts_digest: str
    num_prompts: tuple[int, int]
    seed: int
    created: str
    versions: Mapping[str, str]
    cost_in_runs: float
    complete: bool
    plans: Mapping[int, Plan]
    measured: Measurements | None
    dtype: str | None = None

    def best(
        self, *, computed_steps: int | None = None, speedup: float | None = None, quality: float | None = None
    ) -> Plan:
        """The plan for one target: at most so many computed steps, at least so many times fewer (2 by default), or at
        least this PSNR in dB.

        Raises:
            ConfigError: two targets, or one that no plan reaches; the message lists the plans.
        """
        targets = {"computed_steps": computed_steps, "speedup": speedup, "quality": quality}
        given = [(name, value) for name, value in targets.items() if value is not None] or [("speedup", 2.0)]
        (name, target), *rest = given
        if rest:
            raise ConfigError(f"profile: give one of {name} and {rest[0][0]}, not both")
        if not isinstance(target, (int, float)) or isinstance(target, bool) or not math.isfinite(target) or target <= 0:
            raise ConfigError(f"profile({name}={target!r}): {name} must be a finite number above 0")
        total = self.num_inference_steps
        if name == "quality":
            judged = max((len(plan.held_out) for plan in self.plans.values()), default=0)
            if judged < FEWEST_HELD_OUT:
                raise ConfigError(
                    f"profile(quality={target:g}): a promise takes at least {FEWEST_HELD_OUT} held-out prompts, and "
                    f"this profile was judged on {judged}; calibrate with more prompts, or ask for speedup= or "
                    "computed_steps="
                )
            chosen = min((count for count, plan in self.plans.items() if plan.promised >= target), default=None)
        else:
            most = target if name == "computed_steps" else total / target
            chosen = max((count for count in self.plans if count <= most), default=None)
        if chosen is None:
            plans = ", ".join(
                f"{count} computed steps ({total / count:.2f}x) with "
                f"{f'{plan.promised:.1f} dB' if math.isfinite(plan.promised) else 'no promise'}"
                for count, plan in sorted(self.plans.items())
            )
            raise ConfigError(f"profile({name}={target:g}): no plan grants it; {self.model} has {plans}")
        return self.plans[chosen]

    def promise(self, plan: Plan, pipeline: Any = None) -> Promise:
        """What is known of the plan's quality, and for which runs; nothing for a pipeline in another dtype."""
        unlike = None if pipeline is None else self._other_dtype(pipeline)
        return Promise(
            quality=plan.promised if unlike is None else -math.inf,
            expected=plan.expected,
            prompts=len(plan.held_out),
            coordinates=self.coordinates,
            but=None if unlike is None else f"the profile was measured in {self.dtype}, the pipeline is in {unlike}",
        )

    def _other_dtype(self, pipeline: Any) -> str | None:
        """The pipeline's dtype where it is known to differ from the profile's."""
        given = dtype_of(pipeline)
        return None if self.dtype in (None, given) else given

    def options_for(self, backend: str) -> dict[str, Any]:
        """The measured options of a cache backend, "tea_cache" or "mag_cache".

        Raises:
            ConfigError: nothing was measured for it.
        """
        if self.measured is None:
            raise ConfigError(f"profile(backend={backend!r}): it holds no measurements; calibrate anew")
        return self.measured.options_for(backend)

    def check(self, pipeline: Any, *, quality: float | None = None) -> None:
        """Refuse a pipeline that this profile was not made for; warn of another dtype, in which it promises nothing.

        Raises:
            StateError: another model, configuration or scheduler; or another dtype and a `quality` in dB.
        """
        model, digest, scheduler = fingerprint(pipeline)
        for what, own, given in (
            ("denoiser", self.model, model),
            ("scheduler", self.scheduler, scheduler),
            ("configuration", self.config_digest, digest),
        ):
            if own != given:
                raise StateError(
                    f"this profile was made for {what} {own}, but the pipeline has {given}; calibrate this pipeline"
                )
        unlike = self._other_dtype(pipeline)
        if unlike is None:
            return
        if quality is not None:
            raise StateError(
                f"profile(quality={quality:g}): this profile was measured in {self.dtype} and promises nothing of a "
                f"pipeline in {unlike}; calibrate in {unlike}, or ask for speedup= or computed_steps="
            )
        logger.warning(
            "this profile was measured in %s, and the pipeline is in %s: its schedules are used, and their quality is "
            "not promised",
            self.dtype,
            unlike,
        )

    def __repr__(self) -> str:
        counts = " or ".join(map(str, sorted(self.plans))) or "no"
        return (
            f"<Profile of {self.model}: {self.num_inference_steps} steps, plans for {counts} computed"
            f"{'' if self.complete else ', search not finished'}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return profile_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON, whole or not at all.

        Raises:
            StateError: it cannot be written; an earlier file stays as it is.
        """
        write_text(path, self.as_text())

    def as_text(self) -> str:
        """What `save` writes."""
        return as_text(self, HEAD)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile.

        Raises:
            ConfigError: no such file, or not a whole profile of this format.
        """
        return read_record(cls, path, HEAD, what="profile", remedy="calibrate anew", upgrade=_upgrade)


def _upgrade(document: dict[str, Any]) -> None:
    """Format 3: MagCache ratios begin at the second step."""
    if document.get("format") == 3:
        document["format"] = 4
        if (measured := document.get("measured")) and measured["mag_ratios"] is not None:
            measured["mag_ratios"] = [[1.0, *branch] for branch in measured["mag_ratios"]]


def fingerprint(pipeline: Any) -> tuple[str, str, str]:
    """Class of the denoiser, digest of its configuration and the scheduler's, class of the scheduler.

    Settings that shift the scheduler's noise levels are left out: a plan serves other shifts too.
    """
    denoiser: Any = getattr(pipeline, "transformer", None) or getattr(pipeline, "unet", None)
    scheduler = getattr(pipeline, "scheduler", None)
    parts = [
        {
            key: value
            for key, value in dict(getattr(each, "config", {})).items()
            if not key.startswith("_") and "shift" not in key
        }
        for each in (denoiser, scheduler)
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return model_name(denoiser), hashlib.sha256(text.encode()).hexdigest()[:16], type(scheduler).__name__


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
