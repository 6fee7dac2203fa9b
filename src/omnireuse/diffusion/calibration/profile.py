"""What a search has found out about one pipeline, as a file that a person can read."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from omnireuse.diffusion.calibration.measurements import Measurements
from omnireuse.diffusion.calibration.profile_html import profile_html
from omnireuse.diffusion.calibration.student import student
from omnireuse.diffusion.reuse.forecasters import Fitted, forecaster_named
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.runtime.placement import dtype_of
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Promise
from omnireuse.errors import ConfigError, StateError
from omnireuse.records import Record, as_text, read_record, write_text

__all__ = ["FEWEST_HELD_OUT", "Plan", "Profile", "fingerprint"]

logger = logging.getLogger("omnireuse")

HEAD = {"format": 4}
FEWEST_HELD_OUT = 3
"""Held-out prompts that a promise takes: of fewer, Student's t bounds nothing that anybody could use."""


class Plan(Record, frozen=True, kw_only=True):
    """One schedule and what it was worth.

    Attributes:
        steps: the steps that compute, the first among them.
        forecaster: name of the forecaster for the others, or "fitted".
        weights: of a "fitted" one, for each branch of guidance and each step of the run; one set serves all branches.
        psnr: mean PSNR to the full run in dB on the prompts it was searched with.
        held_out: PSNR of each prompt that the search has not seen; none where an interrupt came before.
    """

    steps: tuple[int, ...]
    forecaster: str
    weights: tuple[tuple[tuple[float, ...], ...], ...] = ()
    psnr: float
    held_out: tuple[float, ...]

    def strategy(self, at: tuple[float, ...]) -> Strategy:
        """What the plan does.

        Args:
            at: noise level of each step of the run that it was searched for.
        """
        total = len(at)
        noise = at if all(before >= after for before, after in pairwise(at)) else None
        policy = FixedSchedule(
            steps=self.steps, made_for=total, made_for_noises=noise, compute_last=self.steps[-1] == total - 1
        )
        forecaster = (
            Fitted(coordinates=at, weights=self.weights, computed=self.steps)
            if self.weights
            else forecaster_named(self.forecaster)
        )
        return Strategy.where_it_fits(policy, forecaster)

    @property
    def promised(self) -> float:
        """PSNR in dB that the mean over new prompts reaches in about 19 of 20 cases.

        It is the lower bound of the mean by Student's t, one-sided at 95 %, and −∞ for a plan that was judged on fewer
        than `FEWEST_HELD_OUT` prompts held out."""
        if len(self.held_out) < FEWEST_HELD_OUT:
            return -math.inf
        mean = math.fsum(self.held_out) / len(self.held_out)
        spread = math.fsum((each - mean) ** 2 for each in self.held_out) / (len(self.held_out) - 1)
        return mean - student(len(self.held_out) - 1) * math.sqrt(spread / len(self.held_out))


class Profile(Record, frozen=True, kw_only=True):
    """The best schedules that were found for a pipeline, one for each number of computed steps.

    Attributes:
        model: class of the denoiser.
        config_digest: of its configuration and its scheduler's.
        scheduler: class of the scheduler.
        num_inference_steps: denoising steps of the runs that were searched.
        at: where each step stood, as forecasters see it: the share of noise in the latents, or the step's index where
            the scheduler's noise is not known. A run whose steps stand elsewhere computes where as much noise is left.
        call: what the pipeline was called with beside the prompts, as text.
        prompts_digest: of all prompts.
        num_prompts: how many were searched with, and how many held out.
        seed: of noise and search.
        created: date.
        versions: of the libraries.
        cost_in_runs: what the search cost, in full runs of one prompt.
        complete: False where the search was cut short; every plan is then the best so far.
        plans: by number of computed steps.
        measured: what the full runs have shown beside that; None where they were not looked at.
        dtype: what the denoiser computed in, as "bfloat16"; None where an older version has not noted it.
    """

    model: str
    config_digest: str
    scheduler: str
    num_inference_steps: int
    at: tuple[float, ...]
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
        """The plan for one wish: at most so many computed steps, at least this speed-up in steps, or at least this
        PSNR.

        Raises:
            ConfigError: a wish that no plan of this profile grants; it says what can be had.
        """
        wishes = {"computed_steps": computed_steps, "speedup": speedup, "quality": quality}
        (name, wish), *rest = [(name, wish) for name, wish in wishes.items() if wish is not None] or [("speedup", 2.0)]
        if rest:
            raise ConfigError(f"profile: give one of {name} and {rest[0][0]}, not both")
        if not isinstance(wish, (int, float)) or isinstance(wish, bool) or not math.isfinite(wish) or wish <= 0:
            raise ConfigError(f"profile({name}={wish!r}): {name} must be a finite number above 0")
        total = self.num_inference_steps
        if name == "quality":
            judged = max((len(plan.held_out) for plan in self.plans.values()), default=0)
            if judged < FEWEST_HELD_OUT:
                raise ConfigError(
                    f"profile(quality={wish:g}): a promise takes at least {FEWEST_HELD_OUT} held-out prompts, and this "
                    f"profile was judged on {judged}; calibrate with more prompts, or ask for speedup= or "
                    "computed_steps="
                )
            granting = [count for count, plan in self.plans.items() if plan.promised >= wish]
            chosen = min(granting, default=None)
        else:
            most = wish if name == "computed_steps" else total / wish
            chosen = max((count for count in self.plans if count <= most), default=None)
        if chosen is None:
            had = ", ".join(
                f"{count} computed steps ({total / count:.2f}x) with "
                f"{f'{plan.promised:.1f} dB' if math.isfinite(plan.promised) else 'no promise'}"
                for count, plan in sorted(self.plans.items())
            )
            raise ConfigError(f"profile({name}={wish:g}): no plan grants it; {self.model} has {had}")
        return self.plans[chosen]

    def promise(self, plan: Plan, pipeline: Any = None) -> Promise:
        """What is known of the plan's quality, and for which runs.

        Args:
            pipeline: that will do the runs; in another dtype than the profile's nothing is promised of them.
        """
        expected = math.fsum(plan.held_out) / len(plan.held_out) if plan.held_out else math.nan
        unlike = None if pipeline is None else self._other_dtype(pipeline)
        return Promise(
            quality=plan.promised if unlike is None else -math.inf,
            expected=expected,
            prompts=len(plan.held_out),
            coordinates=self.at,
            but=None if unlike is None else f"the profile was measured in {self.dtype}, the pipeline is in {unlike}",
        )

    def _other_dtype(self, pipeline: Any) -> str | None:
        """What the pipeline computes in, where it is known to be another dtype than the profile's."""
        given = dtype_of(pipeline)
        return None if self.dtype in (None, given) else given

    def options_for(self, backend: str) -> dict[str, Any]:
        """What was measured of the options of a cache backend, "tea_cache" or "mag_cache".

        Raises:
            ConfigError: nothing was.
        """
        if self.measured is None:
            raise ConfigError(f"profile(backend={backend!r}): it holds no measurements; calibrate anew")
        return self.measured.options_for(backend)

    def check(self, pipeline: Any, *, quality: float | None = None) -> None:
        """Refuse a pipeline that this profile was not made for.

        Another dtype changes the full run itself. The schedules serve it, with a warning, but what was measured of
        their quality is not known of it.

        Args:
            quality: that is asked of the profile in dB, if any.

        Raises:
            StateError: another model, another configuration or another scheduler; or another dtype with a quality
                asked for.
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
            StateError: it cannot be written; a file that was there before is untouched.
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

    Left out is how the scheduler shifts its noise levels: a plan is carried over from one shift to another.
    """
    denoiser = getattr(pipeline, "transformer", None) or getattr(pipeline, "unet", None)
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
    return type(denoiser).__name__, hashlib.sha256(text.encode()).hexdigest()[:16], type(scheduler).__name__
