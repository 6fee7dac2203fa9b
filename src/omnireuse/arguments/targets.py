"""From a target, such as a number of steps or a quality, to the strategy that reaches it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from omnireuse import messages
from omnireuse.errors import ConfigError
from omnireuse.forecasters import forecaster_named
from omnireuse.forecasters.base import Forecaster
from omnireuse.forecasters.blend import Blend
from omnireuse.hooks.denoisers import denoisers_of, model_name
from omnireuse.hooks.extension import ByCalls
from omnireuse.hooks.opening import Opened, Untuned
from omnireuse.loop.strategy import Strategy
from omnireuse.policies import policy_named
from omnireuse.policies.base import Policy
from omnireuse.policies.error_control import ErrorControl
from omnireuse.policies.fixed import Steps
from omnireuse.policies.spread import Spread
from omnireuse.profiles.guidance import CalibratedRuns
from omnireuse.profiles.profile import PlanChoice, Profile, profile_for
from omnireuse.profiles.target import Target

__all__ = ["SEVERAL_KINDS", "Profiled", "in_fitting_region", "strategy_for", "strategy_of"]

logger = logging.getLogger("omnireuse")

SEVERAL_KINDS = ("LTX2VideoTransformer3DModel", "MiniMaxH3Transformer3DModel")
"""Denoisers that return frames and sound. Others like them are found at the first call of a run."""


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


def strategy_for(
    pipeline: object,
    target: Target,
    *,
    profile: Profile | str | os.PathLike[str] | None = None,
    region: str | None = None,
    untuned: Callable[[str], str] = lambda _: "no engine tunes for it",
    place: str = "enable",
) -> PlanChoice:
    """The strategy for a target; the default without one.

    Args:
        pipeline: that the strategy is for; None if it is elsewhere: a profile is then not checked against it, and
            the strategy keeps its region unless one is given.
        profile: or where it is found; None for none.
        region: "step" or "call"; None for the one that serves the pipeline.
        untuned: from a region to why pictures are not measured there, in words; empty if they are.
        place: where the target was given, for errors.

    Raises:
        ConfigError: no strategy reaches the target, or a quality has no profile and no tuning.
        StateError: the profile belongs to another pipeline.
    """
    if profile is not None and target.tolerance is not None:
        raise ConfigError(f"{place}: give one of tolerance and profile, not both")
    if target == Target("computed_steps", 1):
        without = " without a profile" if profile is None else ""
        raise ConfigError(messages.ONE_COMPUTED_STEP, place=place, without=without)
    if profile is not None:
        known = profile_for(pipeline, profile, quality=target.quality)
        chosen = known.choose(target, pipeline)
        return chosen._replace(strategy=in_fitting_region(chosen.strategy, pipeline, region), known=known)
    if target.quality is not None:
        strategy = in_fitting_region(Strategy(policy=Spread(speedup=1.0), forecaster=Blend()), pipeline, region)
        if why := untuned(strategy.region):
            raise ConfigError(messages.QUALITY_UNTUNED, place=place, quality=target.quality, why=why)
        return PlanChoice(strategy, str(target))
    if target.tolerance is not None:
        strategy = Strategy(policy=ErrorControl(tolerance=target.tolerance), forecaster=Blend())
    else:
        strategy = Strategy.default(**target.keywords)
    return PlanChoice(in_fitting_region(strategy, pipeline, region), str(target))


@dataclass(frozen=True)
class Profiled:
    """A profile, or its place, as a value that opens itself; the other fields are as of `strategy_for`."""

    profile: Profile | str | os.PathLike[str]
    target: Target
    region: str | None = None

    def open(self, pipeline: object, group: dist.ProcessGroup | None) -> Opened:
        """The profile's strategy, and its promise.

        Raises:
            ConfigError: no strategy reaches the target.
            StateError: the profile belongs to another pipeline.
        """
        chosen = strategy_for(pipeline, self.target, profile=self.profile, region=self.region)
        policy = chosen.strategy.policy
        if isinstance(policy, Steps) and policy.elsewhere is not None:
            policy = policy.elsewhere
        fallback = in_fitting_region(Strategy(policy=policy, forecaster=Blend()), pipeline, self.region)
        adapts = (ByCalls(),) if self.region is None else ()
        runs = CalibratedRuns(pipeline, chosen, fallback)
        return chosen.strategy, chosen.name, (runs, Untuned("a profile"), *adapts)


def in_fitting_region(strategy: Strategy, pipeline: object, region: str | None = None) -> Strategy:
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
