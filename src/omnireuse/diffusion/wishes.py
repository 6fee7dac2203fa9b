"""From what a user wants of reuse, so many steps or so much quality, to a strategy that gives it."""

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

__all__ = ["NOISE_EXPONENT", "POWER", "fitting", "profile_for", "strategy_for"]

logger = logging.getLogger("omnireuse")

NOISE_EXPONENT = 0.4
"""How computed steps are spread where no profile says it better: evenly in (1 − noise)^0.4 (``python -m bench
few_steps``)."""
POWER = 1.7
"""The same by step number, for runs whose noise is not known (``python -m bench step_reuse``)."""


def strategy_for(
    pipeline: Any,
    *,
    profile: Profile | str | os.PathLike[str] | None,
    speedup: float | None,
    computed_steps: int | None,
    quality: float | None,
    tolerance: float | None,
    region: str | None = None,
) -> tuple[Strategy, str, Promise | None]:
    """The strategy for one wish, its name, and what a profile promises of it.

    Args:
        region: "step" or "call"; None for the one that serves the pipeline.

    Raises:
        ConfigError: a region of blocks, two wishes, one that cannot be granted, or a quality without the profile that
            it is promised by.
        StateError: a profile of another pipeline.
    """
    if region not in (None, "step", "call"):
        raise ConfigError(f"enable(region={region!r}): region must be 'step' or 'call' beside a wish, got {region!r}")
    if tolerance is not None:
        others = {"profile": profile, "speedup": speedup, "computed_steps": computed_steps, "quality": quality}
        for other, wish in others.items():
            if wish is not None:
                raise ConfigError(f"enable: give one of tolerance and {other}, not both")
        strategy = Strategy(policy=ErrorControl(tolerance=tolerance), forecaster=BestOrder())
        return fitting(strategy, pipeline, region), f"tolerance {tolerance:g} of the final latents", None
    if profile is not None:
        known = profile_for(pipeline, profile, quality=quality)
        plan = known.best(speedup=speedup, computed_steps=computed_steps, quality=quality)
        name = f"profile: {len(plan.steps)} of {known.num_inference_steps} steps"
        return fitting(plan.strategy(known.at), pipeline, region), name, known.promise(plan, pipeline)
    if quality is not None:
        raise ConfigError(
            f"enable(quality={quality!r}): a quality can only be promised by a profile of this pipeline; make one with "
            "omnireuse.calibrate and give it as profile=, or give tolerance=, the share of the final latents that "
            "reuse may change, which needs none"
        )
    if speedup is not None and computed_steps is not None:
        raise ConfigError("enable: give one of speedup and computed_steps, not both")
    if computed_steps == 1:
        raise ConfigError(
            "enable(computed_steps=1): computed_steps must be at least 2 without a profile, got 1; the first and the "
            "last step of a run always compute"
        )
    policy = FixedSchedule(speedup=speedup, num_computed=computed_steps, power=POWER, noise_exponent=NOISE_EXPONENT)
    name = f"{speedup:g}x fewer steps" if speedup is not None else f"{computed_steps} computed steps"
    return fitting(Strategy(policy=policy, forecaster=Blend()), pipeline, region), name, None


def profile_for(pipeline: Any, profile: Profile | str | os.PathLike[str], *, quality: float | None = None) -> Profile:
    """The profile, or that in a file, after making sure that it is this pipeline's and may promise a quality, if one is
    asked for."""
    known = profile if isinstance(profile, Profile) else Profile.load(profile)
    known.check(pipeline, quality=quality)
    return known


def fitting(strategy: Strategy, pipeline: Any, region: str | None = None) -> Strategy:
    """A strategy of region "step" that nobody chose, in the region that was asked for or else serves this pipeline's
    denoisers.

    Region "step" forecasts what the scheduler is handed. Where the denoiser makes sound beside frames, that is
    one of two, so each call is forecast instead, with both.
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
