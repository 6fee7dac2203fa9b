"""From a profile and a target to the strategy that reaches it."""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections.abc import Callable
from typing import Any

from omnireuse.arguments.targets import SPREAD, Chosen, in_fitting_region
from omnireuse.base.validation import kind_of
from omnireuse.errors import WrongTypeError
from omnireuse.forecasters.blend import Blend
from omnireuse.loop.strategy import Strategy
from omnireuse.policies.spread import Spread
from omnireuse.policies.steps import Steps
from omnireuse.profiles.guidance import Calibrated
from omnireuse.profiles.profile import Profile
from omnireuse.summary.summary import Promise

__all__ = ["chosen_by", "chosen_for", "profile_for"]

logger = logging.getLogger("omnireuse")


def chosen_by(
    profile: Profile | str | os.PathLike[str],
    pipeline: Any,
    *,
    region: str | None = None,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
) -> Chosen:
    """The strategy that a profile has for one target, and for runs whose guidance is far from the profile's.

    Args:
        profile: or where it is found.
        pipeline: that the strategy is for; None where it is elsewhere.
        region: "step" or "call"; None for the one that serves the pipeline.

    Raises:
        ConfigError: there is no whole profile, or it has no strategy that reaches the target.
        StateError: it belongs to another pipeline.
    """
    known = profile_for(pipeline, profile, quality=quality)
    chosen = chosen_for(known, pipeline, speedup=speedup, computed_steps=computed_steps, quality=quality)
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


def chosen_for(
    known: Profile,
    pipeline: Any = None,
    *,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
) -> Chosen:
    """The strategy of a profile for one target: exactly as many computed steps as are asked for.

    Where no plan has that number, and in runs of another length or at other noise levels, the default's steps compute,
    `Blend` forecasts, and nothing is promised.

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
        elsewhere = Spread(speedup=total / count, **SPREAD)
    else:
        elsewhere = Spread(**amount, **SPREAD)
        count = len(elsewhere.schedule(total))
        if count not in known.plans:
            return _without_plan(known, count, elsewhere)
        plan = known.plans[count]
    return Chosen(
        plan.strategy(known.coordinates, elsewhere),
        f"profile: {count} of {total} steps",
        known.promise(plan, pipeline),
    )


def _without_plan(known: Profile, count: int, policy: Spread) -> Chosen:
    total, having = known.num_inference_steps, ", ".join(map(str, sorted(known.plans))) or "none"
    but = (
        f"the profile has no plan for {count} of {total} steps, but for {having}; they are computed where the default "
        "computes them, and its blend forecasts the others"
    )
    logger.info("%s; nothing is promised", but)
    promise = Promise(tenth=-math.inf, expected=math.nan, prompts=0, coordinates=known.coordinates, but=but)
    name = f"{count} of {total} steps, without a plan of the profile"
    return Chosen(Strategy(policy=policy, forecaster=Blend()), name, promise)


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
        WrongTypeError: neither a profile nor the place of one.
        ConfigError: there is no whole profile.
        StateError: it belongs to another pipeline.
    """
    if not isinstance(profile, (Profile, str, os.PathLike)):
        raise WrongTypeError(
            f"enable(profile={profile!r:.60}): profile must be what omnireuse.calibrate returned, or its file or id, "
            f"got {kind_of(profile)}"
        )
    known = profile if isinstance(profile, Profile) else Profile.from_pretrained(profile)
    if pipeline is not None:
        known.check(pipeline, quality=quality)
    return known
