"""From a target, such as a number of steps or a quality, to the strategy that reaches it."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

from omnireuse.diffusion.adapters import BLOCK_STACKS
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.reuse.forecasters import BestOrder, Blend
from omnireuse.diffusion.reuse.policies import ErrorControl, FixedSchedule
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Promise
from omnireuse.errors import ConfigError

__all__ = ["NOISE_EXPONENT", "POWER", "in_fitting_region", "profile_for", "strategy_for"]

logger = logging.getLogger("omnireuse")

NOISE_EXPONENT = 0.4
"""Computed steps are spread evenly in (1 − noise)^0.4 where no profile is given (``python -m bench few_steps``)."""
POWER = 1.7
"""The same by step number, for runs whose noise is not known (``python -m bench step_reuse``)."""


def strategy_for(
    pipeline: Any,
    *,
    profile: Profile | str | os.PathLike[str] | None,
    region: str | None,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
    tolerance: float | None = None,
) -> tuple[Strategy, str, Promise | None]:
    """The strategy for one target, its name, and what a profile promises of it.

    Args:
        region: "step" or "call"; None for the one that serves the pipeline.

    Raises:
        ConfigError: no strategy reaches the target, or a quality is given without a profile.
        StateError: the profile belongs to another pipeline.
    """
    promise = None
    if tolerance is not None:
        strategy = Strategy(policy=ErrorControl(tolerance=tolerance), forecaster=BestOrder())
        name = f"tolerance {tolerance:g} of the final latents"
    elif profile is not None:
        known = profile_for(pipeline, profile, quality=quality)
        plan = known.best(speedup=speedup, computed_steps=computed_steps, quality=quality)
        strategy, promise = plan.strategy(known.at), known.promise(plan, pipeline)
        name = f"profile: {len(plan.steps)} of {known.num_inference_steps} steps"
    elif quality is not None:
        raise ConfigError(
            f"enable(quality={quality!r}): a quality can only be promised by a profile of this pipeline; make one with "
            "omnireuse.calibrate and give it as profile=, or give tolerance=, the share of the final latents that "
            "reuse may change, which needs none"
        )
    elif computed_steps == 1:
        raise ConfigError(
            "enable(computed_steps=1): computed_steps must be at least 2 without a profile, got 1; the first and the "
            "last step of a run always compute"
        )
    else:
        policy = FixedSchedule(speedup=speedup, num_computed=computed_steps, power=POWER, noise_exponent=NOISE_EXPONENT)
        strategy = Strategy(policy=policy, forecaster=Blend())
        name = f"{speedup:g}x fewer steps" if speedup is not None else f"{computed_steps} computed steps"
    return in_fitting_region(strategy, pipeline, region), name, promise


def profile_for(pipeline: Any, profile: Profile | str | os.PathLike[str], *, quality: float | None = None) -> Profile:
    """The profile, or the one in a file, checked against the pipeline and the quality that it shall promise.

    Raises:
        ConfigError: the file is no whole profile.
        StateError: it belongs to another pipeline.
    """
    known = profile if isinstance(profile, Profile) else Profile.load(profile)
    known.check(pipeline, quality=quality)
    return known


def in_fitting_region(strategy: Strategy, pipeline: Any, region: str | None = None) -> Strategy:
    """A strategy of region "step" in the given region, or else in the one that serves the pipeline's denoisers.

    Region "step" forecasts what the scheduler receives. Where the denoiser produces sound beside frames, that is one of
    two outputs, so each call is forecast instead, with both.
    """
    if region is not None:
        return replace(strategy, region=region, together=region == "call")
    if strategy.region == "call":
        return strategy
    models = [type(unwrapped(denoiser)).__name__ for denoiser in denoisers_of(pipeline)]
    several = [model for model in models if model in BLOCK_STACKS and not BLOCK_STACKS[model].has_one_output]
    if not several:
        return strategy
    logger.info("%s makes several kinds of latents, and its calls are forecast instead of its steps", several[0])
    return replace(strategy, region="call", together=True)
