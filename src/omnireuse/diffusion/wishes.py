"""From what a user wants of reuse, so many steps or so much quality, to a strategy that gives it."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

from omnireuse.diffusion.adapters import BLOCK_STACKS
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.reuse.forecasters import Blend
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.runtime.session import denoisers_of
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import ConfigError

__all__ = ["POWER", "fitting", "strategy_for"]

logger = logging.getLogger("omnireuse")

POWER = 1.7
"""How computed steps are spread where no profile says it better (``python -m bench step_reuse``)."""


def strategy_for(
    pipeline: Any,
    *,
    profile: Profile | str | os.PathLike[str] | None,
    speedup: float | None,
    computed_steps: int | None,
    quality: float | None,
) -> tuple[Strategy, str]:
    """The strategy for one wish, and its name.

    Raises:
        ConfigError: two wishes, one that cannot be granted, or a quality without the profile that it is promised by.
        StateError: a profile of another pipeline.
    """
    if profile is not None:
        known = profile if isinstance(profile, Profile) else Profile.load(profile)
        known.check(pipeline)
        plan = known.best(speedup=speedup, computed_steps=computed_steps, quality=quality)
        name = f"profile: {len(plan.steps)} of {known.num_inference_steps} steps, {plan.promised:.1f} dB promised"
        return plan.strategy(known.at), name
    if quality is not None:
        raise ConfigError(
            f"enable(quality={quality!r}): a quality can only be promised by a profile of this pipeline; make one with "
            "omnireuse.calibrate and give it as profile="
        )
    if speedup is not None and computed_steps is not None:
        raise ConfigError("enable: give one of speedup and computed_steps, not both")
    policy = FixedSchedule(speedup=speedup, num_computed=computed_steps, power=POWER)
    name = f"{speedup:g}x fewer steps" if speedup is not None else f"{computed_steps} computed steps"
    return fitting(Strategy(policy=policy, forecaster=Blend()), pipeline), name


def fitting(strategy: Strategy, pipeline: Any) -> Strategy:
    """A strategy of region "step" that nobody chose, in a region that serves this pipeline's denoisers.

    Region "step" forecasts what the scheduler is handed. Where the denoiser makes sound beside frames, that is
    one of two, so each call is forecast instead, with both.
    """
    models = [type(unwrapped(denoiser)).__name__ for denoiser in denoisers_of(pipeline)]
    several = [model for model in models if model in BLOCK_STACKS and not BLOCK_STACKS[model].makes_one_output]
    if not several:
        return strategy
    logger.info("%s makes several kinds of latents, and its calls are forecast instead of its steps", several[0])
    return replace(strategy, region="call", together=True)
