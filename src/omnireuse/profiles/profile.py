"""A profile: what a calibration has found for one pipeline, as a file that a person can read."""

from __future__ import annotations

import datetime
import logging
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from omnireuse import messages
from omnireuse.base.records import Record, as_text, read_record, write_text
from omnireuse.base.validation import Positive, check_value, field_error, kind_error
from omnireuse.errors import ConfigError, StateError
from omnireuse.forecasters.blend import Blend
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.call_arguments import arguments_of, read_argument
from omnireuse.policies.spread import Spread
from omnireuse.profiles.conditions import OTHER_WEIGHTS, Conditions, watch_of
from omnireuse.profiles.measurements import Measurements
from omnireuse.profiles.origin import Origin, versions
from omnireuse.profiles.plan import FEWEST_HELD_OUT, Plan
from omnireuse.profiles.sharing import found
from omnireuse.profiles.target import Target
from omnireuse.summary.summary import Promise

__all__ = ["FEWEST_HELD_OUT", "HEAD", "Plan", "PlanChoice", "Profile", "profile_for"]

logger = logging.getLogger("omnireuse")

HEAD = {"format": 6}
"""First entries of the file."""


class PlanChoice(NamedTuple):
    """The strategy for one target, its name for logs and the summary, and what a profile promises of it."""

    strategy: Strategy
    name: str
    promise: Promise | None = None
    known: Profile | None = None


class Profile(Record, frozen=True, kw_only=True):
    """The best schedules found for a pipeline, one for each number of computed steps.

    Attributes:
        model: class of the denoiser.
        config_digest: digest of the configurations of denoiser and scheduler.
        scheduler: class of the scheduler.
        num_inference_steps: denoising steps of the runs that were searched.
        coordinates: position of each step, as forecasters see it ("at" in the file): the noise fraction in the
            latents, or the step's index if the scheduler's noise is not known.
        call: arguments of the pipeline's call beside the prompts, as text.
        prompts_digest: digest of all prompts.
        num_prompts: number of prompts that the search used, and number of held-out prompts.
        seed: seed of the noise and of the search.
        created: day on which it was made.
        versions: versions of the libraries.
        cost_in_runs: cost of the search in full runs of one prompt.
        complete: False if the search was interrupted; each plan is then the best so far.
        plans: the plans, by number of computed steps.
        measured: other measurements of the full runs; None if none were made.
        dtype: dtype that the denoiser computed in, such as "bfloat16".
        origin: name, revision and weights of the pipeline, and how it held them.
        autocast, hooks, guider: the further `Conditions` of the runs.
        command: the call that made it; None in a file of a version that did not note it.

    Raises:
        ConfigError: a plan with steps or weights that its runs do not have.
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
    dtype: str
    origin: Origin
    autocast: str | None = None
    hooks: tuple[str, ...] = ()
    guider: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        total = self.num_inference_steps
        if len(self.coordinates) != total:
            raise field_error(self, "coordinates", f"be as many as there are steps, {total}", len(self.coordinates))
        for plan in self.plans.values():
            if plan.steps[-1] >= total or any(len(branch) != total for branch in plan.weights):
                raise field_error(self, "plans", f"be of runs of {total} steps", plan.steps)

    @property
    def conditions(self) -> Conditions:
        """The conditions that it was measured under."""
        return Conditions(
            model=self.model,
            config_digest=self.config_digest,
            scheduler=self.scheduler,
            weights=self.origin.weights,
            adapters=self.origin.adapters,
            dtype=self.dtype,
            holding=self.origin.holding,
            autocast=self.autocast,
            hooks=self.hooks,
            guider=self.guider,
        )

    @classmethod
    def of(cls, conditions: Conditions, origin: Origin, **found: Any) -> Profile:
        """A new profile, made today under these conditions; `found` has the other attributes."""
        return cls(
            model=conditions.model,
            config_digest=conditions.config_digest,
            scheduler=conditions.scheduler,
            dtype=conditions.dtype,
            origin=origin,
            autocast=conditions.autocast,
            hooks=conditions.hooks,
            guider=conditions.guider,
            created=datetime.date.today().isoformat(),
            versions=versions(),
            **found,
        )

    def best(self, *, quality: float | None = None) -> Plan:
        """The plan with the fewest computed steps that promises this PSNR in dB; by default that of half of the steps
        or next fewer, or else of as few as the profile has.

        Raises:
            ConfigError: a quality that no plan promises; the message lists the plans.
        """
        total = self.num_inference_steps
        if quality is None:
            chosen = max((count for count in self.plans if count <= total / 2), default=min(self.plans, default=None))
        else:
            check_value("profile", "quality", quality, Positive)
            judged = max((len(plan.held_out) for plan in self.plans.values()), default=0)
            if judged < FEWEST_HELD_OUT:
                raise ConfigError(messages.TOO_FEW_JUDGED, quality=quality, least=FEWEST_HELD_OUT, judged=judged)
            chosen = min((count for count, plan in self.plans.items() if plan.promised >= quality), default=None)
        if chosen is None:
            plans = ", ".join(
                f"{count} computed steps ({total / count:.2f}x) with "
                f"{f'{plan.promised:.1f} dB' if math.isfinite(plan.promised) else 'no promise'}"
                for count, plan in sorted(self.plans.items())
            )
            asked = "" if quality is None else f"(quality={quality:g})"
            raise ConfigError(f"profile{asked}: no plan grants it; {self.model} has {plans or 'none'}")
        return self.plans[chosen]

    def strategy(
        self, *, speedup: float | None = None, computed_steps: int | None = None, quality: float | None = None
    ) -> Strategy:
        """The strategy for one target, for a `Generation` in a loop of your own; `enable` takes the profile itself.
        Nothing checks that the loop has the profile's model, steps and guidance.

        Args:
            speedup: all steps divided by computed steps, ≥ 1; 2 by default.
            computed_steps: exactly this number of steps is computed.
            quality: PSNR in dB that at least nine of ten pictures reach.

        Raises:
            ConfigError: two targets, one out of range, or a quality that no plan promises.
        """
        target = Target.of("profile", speedup=speedup, computed_steps=computed_steps, quality=quality)
        return self.choose(target).strategy

    def choose(self, target: Target, pipeline: object = None) -> PlanChoice:
        """The strategy for one target: exactly as many computed steps as are asked for.

        If no plan has that number, and in runs of another length or at other noise levels, the default's steps
        are computed, `Blend` forecasts the others, and nothing is promised.

        Args:
            pipeline: the pipeline to compare it with; None for no comparison.

        Raises:
            ConfigError: a quality that no plan promises.
        """
        total = self.num_inference_steps
        if not target or target.is_of_results:
            plan = self.best(quality=target.quality)
            count = len(plan.steps)
            elsewhere = Spread(speedup=total / count)
        else:
            amount: Any = {"speedup" if target.name == "speedup" else "num_computed": target.value}
            elsewhere = Spread(**amount)
            count = len(elsewhere.schedule(total))
            if count not in self.plans:
                return self._without_plan(count, elsewhere)
            plan = self.plans[count]
        return PlanChoice(
            plan.strategy(self.coordinates, elsewhere),
            f"profile: {count} of {total} steps",
            self.promise(plan, pipeline),
        )

    def _without_plan(self, count: int, policy: Spread) -> PlanChoice:
        total, having = self.num_inference_steps, ", ".join(map(str, sorted(self.plans))) or "none"
        but = (
            f"the profile has no plan for {count} of {total} steps, but for {having}; the run follows the "
            "default: its steps are computed, and its blend forecasts the others"
        )
        logger.info("%s; nothing is promised", but)
        promise = Promise(tenth=-math.inf, expected=math.nan, prompts=0, coordinates=self.coordinates, but=but)
        name = f"{count} of {total} steps, without a plan of the profile"
        return PlanChoice(Strategy(policy=policy, forecaster=Blend()), name, promise)

    def promise(self, plan: Plan, pipeline: object = None) -> Promise:
        """What is known of the plan's quality, and for which runs. Nothing is promised of a pipeline that computes
        under other conditions now."""
        return Promise(
            tenth=plan.promised,
            expected=plan.expected,
            prompts=len(plan.held_out),
            coordinates=self.coordinates,
            but=None if pipeline is None else self.unlike(pipeline),
        )

    def arguments(self, pipeline: object) -> dict[str, Any]:
        """The arguments of its runs as `arguments_of` returns them; those that its call leaves out are the pipeline's
        defaults."""
        return arguments_of(pipeline, **{name: read_argument(text) for name, text in self.call.items()})

    def unlike(self, pipeline: object) -> str | None:
        """How the conditions of the pipeline differ at this moment from those of the profile, in words; None if they
        do not."""
        found = self.conditions.unlike(watch_of(pipeline).now())
        if found != OTHER_WEIGHTS:
            return found
        given = Origin.of(pipeline)
        return f"{found}{'' if str(given) == str(self.origin) else f': it is {given}, the profile is of {self.origin}'}"

    def options_for(self, backend: str) -> dict[str, Any]:
        """The measured options of a cache backend, "tea_cache" or "mag_cache".

        Raises:
            ConfigError: nothing was measured for it.
        """
        if self.measured is None:
            raise ConfigError(f"profile(backend={backend!r}): it holds no measurements; calibrate anew")
        return self.measured.options_for(backend)

    def check(self, pipeline: object, *, quality: float | None = None) -> None:
        """Refuse a pipeline that this profile was not made for; warn of other conditions, under which it promises
        nothing.

        Raises:
            StateError: another model, configuration or scheduler; or other conditions and a `quality` in dB.
        """
        if (foreign := self.conditions.foreign(watch_of(pipeline).now())) is not None:
            pipe = type(pipeline).__name__
            raise StateError(messages.PROFILE_OF_ANOTHER, why=foreign, pipeline=pipe, origin=self.origin)
        unlike = self.unlike(pipeline)
        if unlike is None:
            return
        if quality is not None:
            raise StateError(messages.NOTHING_PROMISED, quality=quality, why=unlike)
        logger.warning("%s: the profile's schedules are used, and nothing is promised", unlike)

    def __repr__(self) -> str:
        counts = " or ".join(map(str, sorted(self.plans))) or "no"
        return (
            f"<Profile of {self.model}: {self.num_inference_steps} steps, plans for {counts} computed"
            f"{'' if self.complete else ', search not finished'}>"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON, whole or not at all.

        Raises:
            StateError: it cannot be written; an earlier file stays as it is.
        """
        write_text(path, self.as_text())

    def as_text(self) -> str:
        """The JSON text that `save` writes."""
        return as_text(self, HEAD)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile.

        Raises:
            ConfigError: no such file, or not a whole profile of this format.
        """
        return read_record(cls, path, HEAD, what="profile", remedy="calibrate anew", upgrade=_upgrade)

    @classmethod
    def from_pretrained(cls, place: str | os.PathLike[str], *, revision: str | None = None) -> Profile:
        """Read a shared profile.

        Args:
            place: ``owner/name`` or ``owner/name@revision`` on the Hugging Face Hub, or a folder, with the file
                ``profile.json``; or the file itself.
            revision: branch, tag or commit of a repository.

        Raises:
            ConfigError: nothing there, the hub refuses, or no whole profile of this format.
        """
        return cls.load(found(place, revision))


def _upgrade(document: dict[str, Any]) -> None:
    """Format 5, and earlier files of format 6, have figures that nothing reads; files of tuning name their runs."""
    document.pop("configuration", None)
    if document.get("format") in (5, HEAD["format"]):
        document |= HEAD
        for name in ("changes", "forecast_errors", "quantity"):
            (document.get("measured") or {}).pop(name, None)


def profile_for(pipeline: Any, profile: Profile | str | os.PathLike[str], *, quality: float | None = None) -> Profile:
    """The profile, or the one that `Profile.from_pretrained` finds, checked against the pipeline and the quality that
    it shall promise.

    Raises:
        WrongTypeError: neither a profile nor the place of one.
        ConfigError: there is no whole profile.
        StateError: it belongs to another pipeline.
    """
    if not isinstance(profile, (Profile, str, os.PathLike)):
        raise kind_error("enable", "profile", "be what omnireuse.calibrate returned, or its file or id", profile)
    known = profile if isinstance(profile, Profile) else Profile.from_pretrained(profile)
    if pipeline is not None:
        known.check(pipeline, quality=quality)
    return known
