"""From the settings of a node to the strategy that its runs follow."""

from __future__ import annotations

import os
from dataclasses import replace

from omnireuse.arguments.targets import strategy_for
from omnireuse.base.validation import is_number
from omnireuse.engines.settings import RequestPlan
from omnireuse.errors import ConfigError
from omnireuse.loop.strategy import Strategy
from omnireuse.profiles.profile import Profile
from omnireuse.profiles.target import Target

__all__ = ["MOST", "plan_for", "plan_of_profile"]

MOST = 20.0
"""The largest `speedup`."""

_UNCHECKED = "it was made with diffusers, and a model of ComfyUI cannot be compared with the profile's"


def plan_for(*, speedup: float = 0.0, tolerance: float = 0.0) -> RequestPlan:
    """The plan for one target, or the default.

    Args:
        speedup: all steps divided by computed steps, in [1, `MOST`]; 0 if it is not the target.
        tolerance: relative error of the final latents, above 0 and below 1; 0 if it is not the target.
    """
    for name, value, is_right, must in (
        ("speedup", speedup, is_number(speedup) and (not speedup or 1 <= speedup <= MOST), f"from 1 to {MOST:g}"),
        ("tolerance", tolerance, is_number(tolerance) and 0 <= tolerance < 1, "above 0 and below 1"),
    ):
        if not is_right:
            raise ConfigError(
                f"Omnireuse({name}={value!r}): {name} must be a number {must}, or 0 to leave it out, got {value!r}"
            )
    if speedup and tolerance:
        raise ConfigError(
            f"Omnireuse(speedup={speedup:g}, tolerance={tolerance:g}): speedup must be 0 if tolerance is given, got "
            f"{speedup:g}; set one of them to 0"
        )
    target = Target.of("Omnireuse", speedup=speedup or None, tolerance=tolerance or None)
    if not target:
        return RequestPlan(strategy=Strategy.default(), name="default")
    chosen = strategy_for(None, target, region="step")
    # ComfyUI's model computes all pictures of a batch or none.
    return RequestPlan(strategy=replace(chosen.strategy, per_sample=False), name=chosen.name)


def plan_of_profile(path: str | os.PathLike[str], *, speedup: float = 0.0) -> RequestPlan:
    """A plan of a profile, which `omnireuse.calibrate` has made with diffusers.

    A model of ComfyUI cannot be compared with the profile's, so nothing is promised.

    Args:
        speedup: so many times fewer steps, ≥ 1; 0 for 2.
    """
    chosen = Profile.from_pretrained(path).choose(Target.of("Omnireuse", speedup=speedup or None))
    promise = chosen.promise
    if promise is not None and promise.but is None:
        promise = replace(promise, but=_UNCHECKED)
    return RequestPlan(strategy=chosen.strategy, name=chosen.name, promise=promise)
