"""From a target, such as a number of steps or a quality, to the strategy that reaches it."""

from __future__ import annotations

import logging
import math
import numbers
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from omnireuse.base.validation import as_number, kind_of
from omnireuse.errors import ConfigError, WrongTypeError
from omnireuse.forecasters import forecaster_named
from omnireuse.forecasters.base import Forecaster
from omnireuse.forecasters.blend import Blend
from omnireuse.hooks.denoisers import denoisers_of, model_name
from omnireuse.loop.strategy import Strategy
from omnireuse.policies import policy_named
from omnireuse.policies.base import Policy
from omnireuse.policies.error_control import ErrorControl
from omnireuse.policies.fixed import Steps
from omnireuse.policies.spread import Spread
from omnireuse.profiles.guidance import Calibrated, Choice
from omnireuse.profiles.profile import Profile, profile_for

__all__ = [
    "SEVERAL_KINDS",
    "check_targets",
    "in_fitting_region",
    "strategy_for",
    "strategy_of",
]

logger = logging.getLogger("omnireuse")

SEVERAL_KINDS = ("LTX2VideoTransformer3DModel",)
"""Denoisers that return frames and sound. Others like them are found at the first call of a run."""

_TARGETS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "speedup": ("a number of at least 1 (all steps divided by computed steps)", lambda value: value >= 1),
    "computed_steps": ("a whole number of at least 1", lambda value: value >= 1 and value == int(value)),
    "quality": ("a PSNR in dB of at least 15 and at most 100, such as 40", lambda value: 15 <= value <= 100),
    "tolerance": (
        "a relative error of the final latents above 0 and below 1, such as 0.05 for 5 %",
        lambda value: 0 < value < 1,
    ),
}
"""Each target of `enable`: what it must be, in words and as a test."""


def strategy_of(policy: Policy | str, forecaster: Forecaster | str = "hold", **choices: Any) -> Strategy:
    """A strategy from objects or names; the further choices are fields of `Strategy`.

    Raises:
        UnknownNameError: a name that does not exist.
    """
    if isinstance(policy, str):
        policy = policy_named(policy)
    if isinstance(forecaster, str):
        forecaster = forecaster_named(forecaster)
    return Strategy(policy=policy, forecaster=forecaster, **choices)


def check_targets(place: str = "enable", /, **targets: object) -> None:
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
                f"{place}({name}={value!r:.60}): {name} must be {must}, got {kind_of(value)}{as_number(name, value)}"
            )
        try:
            number = float(value)
        except OverflowError:  # a whole number that no float holds
            number = math.inf
        if not (math.isfinite(number) and is_in_range(number)):
            guess = "; an SSIM is not accepted" if name == "quality" and 0 < number <= 1 else ""
            raise ConfigError(f"{place}({name}={value!r:.60}): {name} must be {must}, got {value!r:.60}{guess}")


def strategy_for(
    pipeline: Any,
    *,
    profile: Profile | str | os.PathLike[str] | None,
    region: str | None = None,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
    tolerance: float | None = None,
    untuned: Callable[[str], str] = lambda _: "no engine tunes for it",
    place: str = "enable",
) -> Choice:
    """The strategy for one target; the default without any.

    Args:
        pipeline: that the strategy is for; None if it is elsewhere: a profile is then not checked against it, and
            the strategy keeps its region unless one is given.
        region: "step" or "call"; None for the one that serves the pipeline.
        untuned: from a region to why pictures are not measured there, in words; empty if they are.
        place: where the target was given, for errors.

    Raises:
        ConfigError: two targets are given, no strategy reaches the target, or a quality has no profile and no tuning.
        StateError: the profile belongs to another pipeline.
    """
    aims = {"tolerance": tolerance, "speedup": speedup, "computed_steps": computed_steps, "quality": quality}
    given = [name for name, aim in aims.items() if aim is not None]
    if tolerance is not None and profile is not None:
        given.append("profile")
    if len(given) > 1:
        raise ConfigError(f"{place}: give one of {given[0]} and {given[1]}, not both")
    if profile is None and quality is not None:
        strategy = in_fitting_region(Strategy(policy=Spread(speedup=1.0), forecaster=Blend()), pipeline, region)
        if why := untuned(strategy.region):
            raise ConfigError(
                f"{place}(quality={quality!r}): a quality can only be promised by a profile of this pipeline, or be "
                f"expected of tuning, which is off ({why}); give profile=, which omnireuse.calibrate makes, or "
                "tolerance=, the share of the final latents that reuse may change, which needs neither"
            )
        return Choice(strategy, f"quality {quality:g} dB")
    if computed_steps == 1:
        without = " without a profile" if profile is None else ""
        raise ConfigError(
            f"{place}(computed_steps=1): computed_steps must be at least 2{without}, got 1; all other steps would be "
            "like the first"
        )
    computed_steps = None if computed_steps is None else int(computed_steps)
    if tolerance is not None:
        strategy = Strategy(policy=ErrorControl(tolerance=tolerance), forecaster=Blend())
        return Choice(in_fitting_region(strategy, pipeline, region), f"tolerance {tolerance:g} of the final latents")
    if profile is not None:
        return _by_profile(
            profile, pipeline, region=region, speedup=speedup, computed_steps=computed_steps, quality=quality
        )
    name = "default"
    if given:
        name = f"{speedup:g}x fewer steps" if speedup is not None else f"{computed_steps} computed steps"
    strategy = Strategy.default(speedup=speedup, computed_steps=computed_steps)
    return Choice(in_fitting_region(strategy, pipeline, region), name)


def _by_profile(
    profile: Profile | str | os.PathLike[str],
    pipeline: Any,
    *,
    region: str | None = None,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
) -> Choice:
    """The strategy that a profile has for one target, and for runs whose guidance is far from the profile's.

    Args:
        profile: or where it is found.
        pipeline: that the strategy is for; None if it is elsewhere.
        region: "step" or "call"; None for the one that serves the pipeline.

    Raises:
        ConfigError: there is no whole profile, or it has no strategy that reaches the target.
        StateError: it belongs to another pipeline.
    """
    known = profile_for(pipeline, profile, quality=quality)
    chosen = known.choose(pipeline, speedup=speedup, computed_steps=computed_steps, quality=quality)
    policy = chosen.strategy.policy
    if isinstance(policy, Steps) and policy.elsewhere is not None:
        policy = policy.elsewhere
    return chosen._replace(
        strategy=in_fitting_region(chosen.strategy, pipeline, region),
        like=Calibrated(
            arguments=known.arguments(pipeline),
            unlike=_looks_at(known, pipeline),
            fallback=in_fitting_region(Strategy(policy=policy, forecaster=Blend()), pipeline, region),
        ),
    )


def _looks_at(known: Profile, pipeline: Any) -> Callable[[], str | None]:
    """Tells how the pipeline, which is held weakly, differs from that of the profile."""
    try:
        held: Callable[[], Any] = weakref.ref(pipeline)
    except TypeError:
        return lambda: known.unlike(pipeline)
    return lambda: None if (living := held()) is None else known.unlike(living)


def in_fitting_region(strategy: Strategy, pipeline: Any, region: str | None = None) -> Strategy:
    """A strategy of region "step" in the given region, or else in the one that serves the pipeline's denoisers.

    Region "step" forecasts what the scheduler receives. If the denoiser produces sound beside frames, that is one of
    two outputs, so each call is forecast instead, with both.
    """
    if region is not None:
        return replace(strategy, region=region, shared_cfg_decision=region == "call")
    if strategy.region == "call" or pipeline is None:
        return strategy
    several = next((name for name in map(model_name, denoisers_of(pipeline)) if name in SEVERAL_KINDS), None)
    if several is None:
        return strategy
    logger.info("%s makes several kinds of latents, and its calls are forecast instead of its steps", several)
    return replace(strategy, region="call", shared_cfg_decision=True)
