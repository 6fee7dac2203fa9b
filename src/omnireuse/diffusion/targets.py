"""From a target, such as a number of steps or a quality, to the strategy that reaches it."""

from __future__ import annotations

import logging
import math
import numbers
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from omnireuse.diffusion.adapters import BLOCK_STACKS
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.reuse.forecasters import Blend
from omnireuse.diffusion.reuse.guidance import Calibrated
from omnireuse.diffusion.reuse.policies import ErrorControl, FixedSchedule
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of, model_name
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Promise
from omnireuse.diffusion.reuse.validation import kind_of
from omnireuse.errors import ConfigError, WrongTypeError

__all__ = [
    "POWER",
    "SPREAD",
    "Chosen",
    "check_targets",
    "chosen_for",
    "in_fitting_region",
    "profile_for",
    "strategy_for",
]

logger = logging.getLogger("omnireuse")

POWER = 1.7
"""How computed steps are spread by number, in runs whose noise is not known (``python -m bench step_reuse``)."""

SPREAD: dict[str, Any] = {"by_noise": True, "power": POWER, "compute_last": False}
"""How computed steps are spread where no profile is given (`FixedSchedule`)."""

_TARGETS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "speedup": (
        "a number of at least 1 (all steps divided by computed steps)",
        lambda value: value >= 1,
    ),
    "computed_steps": ("a whole number of at least 1", lambda value: value >= 1 and value == int(value)),
    "quality": ("a PSNR in dB above 0, such as 40", lambda value: value > 0),
    "tolerance": (
        "a relative error of the final latents above 0 and below 1, such as 0.05 for 5 %",
        lambda value: 0 < value < 1,
    ),
}
"""Each target of `enable`: what it must be, in words and as a test."""


def check_targets(**targets: object) -> None:
    """Refuse a target that is no number or out of range. None is no target.

    Raises:
        WrongTypeError: a target is no number.
        ConfigError: a target is out of range.
    """
    for name, value in targets.items():
        if value is None:
            continue
        must, is_in_range = _TARGETS[name]
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise WrongTypeError(
                f"enable({name}={value!r:.60}): {name} must be {must}, got {kind_of(value)}{_as_number(name, value)}"
            )
        try:
            is_right = math.isfinite(value) and is_in_range(float(value))
        except OverflowError:  # a whole number that no float holds
            is_right = False
        if not is_right:
            raise ConfigError(f"enable({name}={value!r:.60}): {name} must be {must}, got {value!r:.60}")


class Chosen(NamedTuple):
    """The strategy for one target.

    Attributes:
        strategy: that reaches it.
        name: for logs and the summary.
        promise: what a profile promises of it; None without a profile.
        like: the runs that the profile was measured on; None without a profile.
    """

    strategy: Strategy
    name: str
    promise: Promise | None = None
    like: Calibrated | None = None


def strategy_for(
    pipeline: Any,
    *,
    profile: Profile | str | os.PathLike[str] | None,
    region: str | None = None,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
    tolerance: float | None = None,
) -> Chosen:
    """The strategy for one target.

    Args:
        pipeline: that the strategy is for; None where it is elsewhere: a profile is then not checked against it, and
            the strategy keeps its region unless one is given.
        region: "step" or "call"; None for the one that serves the pipeline.

    Raises:
        ConfigError: two targets are given, no strategy reaches the target, or a quality has no profile.
        StateError: the profile belongs to another pipeline.
    """
    aims = {"tolerance": tolerance, "speedup": speedup, "computed_steps": computed_steps, "quality": quality}
    given = [name for name, aim in aims.items() if aim is not None]
    if tolerance is not None and profile is not None:
        given.append("profile")
    if len(given) > 1:
        raise ConfigError(f"enable: give one of {given[0]} and {given[1]}, not both")
    if profile is None and quality is not None:
        raise ConfigError(
            f"enable(quality={quality!r}): a quality can only be promised by a profile of this pipeline; make one with "
            "omnireuse.calibrate and give it as profile=, or give tolerance=, the share of the final latents that "
            "reuse may change, which needs none"
        )
    if computed_steps == 1:
        without = " without a profile" if profile is None else ""
        raise ConfigError(
            f"enable(computed_steps=1): computed_steps must be at least 2{without}, got 1; all other steps would be "
            "like the first"
        )
    if tolerance is not None:
        strategy = Strategy(policy=ErrorControl(tolerance=tolerance), forecaster=Blend())
        return Chosen(in_fitting_region(strategy, pipeline, region), f"tolerance {tolerance:g} of the final latents")
    if profile is not None:
        known = profile_for(pipeline, profile, quality=quality)
        chosen = chosen_for(known, pipeline, speedup=speedup, computed_steps=computed_steps, quality=quality)
        assert isinstance(chosen.strategy.policy, FixedSchedule), "so are those of plans"
        far = Strategy(policy=_spread_like(chosen.strategy.policy), forecaster=Blend())
        return chosen._replace(
            strategy=in_fitting_region(chosen.strategy, pipeline, region),
            like=Calibrated(
                arguments=known.arguments(pipeline),
                unlike=_looks_at(known, pipeline),
                far=in_fitting_region(far, pipeline, region),
            ),
        )
    policy = FixedSchedule(speedup=speedup, num_computed=computed_steps, **SPREAD)
    name = f"{speedup:g}x fewer steps" if speedup is not None else f"{computed_steps} computed steps"
    return Chosen(in_fitting_region(Strategy(policy=policy, forecaster=Blend()), pipeline, region), name)


def chosen_for(
    known: Profile,
    pipeline: Any = None,
    *,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
) -> Chosen:
    """What a profile has for one target: exactly as many computed steps as are asked for.

    Where no plan has that number, the default's steps compute, `Blend` forecasts, and nothing is promised. The weights
    of the plans, carried over to these steps, are better on some pipelines and 9 dB worse on another (``python -m bench
    between``).

    Args:
        pipeline: that it is compared with; None for no comparison.

    Raises:
        ConfigError: a quality that no plan promises.
    """
    total = known.num_inference_steps
    aims = (("speedup", speedup), ("num_computed", computed_steps))
    amount: dict[str, Any] = {name: aim for name, aim in aims if aim is not None}
    if not amount:
        plan = known.best(quality=quality)
        count = len(plan.steps)
    else:
        policy = FixedSchedule(**amount, **SPREAD)
        count = len(policy.schedule(total))
        if count not in known.plans:
            return _without_plan(known, count, policy)
        plan = known.plans[count]
    return Chosen(
        plan.strategy(known.coordinates, known.plans.values(), **amount),
        f"profile: {count} of {total} steps",
        known.promise(plan, pipeline),
    )


def _without_plan(known: Profile, count: int, policy: FixedSchedule) -> Chosen:
    total, having = known.num_inference_steps, ", ".join(map(str, sorted(known.plans))) or "none"
    but = (
        f"the profile has no plan for {count} of {total} steps, but for {having}; they are computed where the default "
        "computes them, and its blend forecasts the others"
    )
    logger.info("%s; nothing is promised", but)
    promise = Promise(tenth=-math.inf, expected=math.nan, prompts=0, coordinates=known.coordinates, but=but)
    name = f"{count} of {total} steps, without a plan of the profile"
    return Chosen(Strategy(policy=policy, forecaster=Blend()), name, promise)


def _spread_like(policy: FixedSchedule) -> FixedSchedule:
    """As many computed steps, spread as without a profile."""
    if policy.num_computed is not None:
        return FixedSchedule(num_computed=policy.num_computed, **SPREAD)
    if policy.speedup is not None or policy.steps is None or policy.made_for is None:
        return FixedSchedule(speedup=policy.speedup, **SPREAD)
    return FixedSchedule(speedup=policy.made_for / len(policy.steps), **SPREAD)


def _looks_at(known: Profile, pipeline: Any) -> Callable[[], str | None]:
    """Tells how the pipeline, which is held weakly, differs from that of the profile."""
    try:
        held: Callable[[], Any] = weakref.ref(pipeline)
    except TypeError:
        return lambda: known.unlike(pipeline)
    return lambda: None if (living := held()) is None else known.unlike(living)


def profile_for(pipeline: Any, profile: Profile | str | os.PathLike[str], *, quality: float | None = None) -> Profile:
    """The profile, or the one that `Profile.from_pretrained` finds, checked against the pipeline and the quality that
    it shall promise.

    Raises:
        ConfigError: there is no whole profile.
        StateError: it belongs to another pipeline.
    """
    known = profile if isinstance(profile, Profile) else Profile.from_pretrained(profile)
    if pipeline is not None:
        known.check(pipeline, quality=quality)
    return known


def in_fitting_region(strategy: Strategy, pipeline: Any, region: str | None = None) -> Strategy:
    """A strategy of region "step" in the given region, or else in the one that serves the pipeline's denoisers.

    Region "step" forecasts what the scheduler receives. Where the denoiser produces sound beside frames, that is one of
    two outputs, so each call is forecast instead, with both.
    """
    if region is not None:
        return replace(strategy, region=region, together=region == "call")
    if strategy.region == "call" or pipeline is None:
        return strategy
    models = [model_name(denoiser) for denoiser in denoisers_of(pipeline)]
    several = [model for model in models if model in BLOCK_STACKS and not BLOCK_STACKS[model].has_one_output]
    if not several:
        return strategy
    logger.info("%s makes several kinds of latents, and its calls are forecast instead of its steps", several[0])
    return replace(strategy, region="call", together=True)


def _as_number(name: str, value: object) -> str:
    """What to write instead of a text that means a number."""
    if not isinstance(value, str):
        return ""
    text = value.strip().lower()
    try:
        number = float(text.removesuffix("x").removesuffix("db").removesuffix("%").strip())
    except ValueError:
        return ""
    number /= 100 if text.endswith("%") else 1
    return f"; write {name}={number:g}" if math.isfinite(number) else ""
