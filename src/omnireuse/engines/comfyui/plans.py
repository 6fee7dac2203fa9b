"""From the settings of a node to the strategy that its runs follow."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from omnireuse.arguments.profiled import chosen_for
from omnireuse.arguments.targets import DEFAULT, strategy_for
from omnireuse.base.validation import is_number
from omnireuse.engines.comfyui.graph import MADE_HERE, conditions_of
from omnireuse.engines.settings import RequestPlan
from omnireuse.errors import ConfigError, StateError
from omnireuse.profiles.profile import Profile

__all__ = ["ProfilePlan", "plan_for", "plan_of_profile"]

_UNCHECKED = "it was made with diffusers, and a model of ComfyUI cannot be compared with the profile's"


@dataclass(frozen=True)
class ProfilePlan(RequestPlan):
    """A plan of a profile.

    Attributes:
        made_for: the sampler and the guidance that it was calibrated with; None where it was not in ComfyUI.
        is_fallback: whether no weights could be fitted for that sampler.
    """

    made_for: tuple[str, float] | None = None
    is_fallback: bool = False


def plan_for(*, speedup: float = 0.0, tolerance: float = 0.0) -> RequestPlan:
    """The plan for one target, or the default.

    Args:
        speedup: all steps divided by computed steps, ≥ 1; 0 where it is not the target.
        tolerance: relative error of the final latents, above 0 and below 1; 0 where it is not the target.
    """
    for name, value, is_right, must in (
        ("speedup", speedup, is_number(speedup) and (not speedup or speedup >= 1), "at least 1"),
        ("tolerance", tolerance, is_number(tolerance) and 0 <= tolerance < 1, "above 0 and below 1"),
    ):
        if not is_right:
            raise ConfigError(
                f"Omnireuse({name}={value!r}): {name} must be a number {must}, or 0 to leave it out, got {value!r}"
            )
    if speedup and tolerance:
        raise ConfigError(
            f"Omnireuse(speedup={speedup:g}, tolerance={tolerance:g}): speedup must be 0 where tolerance is given, got "
            f"{speedup:g}; set one of them to 0"
        )
    if not speedup and not tolerance:
        return RequestPlan(strategy=DEFAULT, name="default")
    chosen = strategy_for(None, profile=None, region="step", speedup=speedup or None, tolerance=tolerance or None)
    # ComfyUI's model computes all pictures of a batch or none.
    return RequestPlan(strategy=replace(chosen.strategy, per_sample=False), name=chosen.name)


def plan_of_profile(path: str | os.PathLike[str], model: Any, *, speedup: float = 0.0) -> RequestPlan:
    """A plan of a profile, which `omnireuse.calibrate` has made.

    One that *Omnireuse calibrate* has made is compared with the model, and with the sampler and the guidance of each
    run; where they differ, nothing is promised. Nor is it by one that was made with diffusers, whose weights cannot be
    compared. Its schedule is carried over to other noise levels, as everywhere.

    Args:
        speedup: so many times fewer steps, ≥ 1; 0 for 2. Where no plan has their number, nothing is promised.
    """
    profile = Profile.from_pretrained(path)
    chosen, made_for = chosen_for(profile, speedup=speedup or None), None
    promise = chosen.promise
    unlike: str | None = _UNCHECKED
    if (profile.command or "").startswith(MADE_HERE):
        made_for = profile.scheduler, float(profile.call["cfg"])
        unlike = _unlike(profile, model)
    return ProfilePlan(
        strategy=chosen.strategy,
        name=chosen.name,
        promise=promise if unlike is None or promise is None or promise.but else replace(promise, but=unlike),
        made_for=made_for,
        is_fallback=profile.measured is not None and "weights" in profile.measured.unmeasured,
    )


def _unlike(profile: Profile, model: Any) -> str | None:
    """Differences of the model's weights or dtype, in words."""
    given = conditions_of(model, profile.scheduler)
    if (given.model, given.config_digest) != (profile.model, profile.config_digest):
        raise StateError(
            f"Omnireuse profile(model={given.model}): model must be like the one that was calibrated, a "
            f"{profile.model}; calibrate this one"
        )
    return None if profile.conditions is None else profile.conditions.unlike(given)
