"""One call for any diffusers pipeline."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from omnireuse.diffusion.cache.selector import BACKENDS
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.forecasters import Blend, Forecaster
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.policy import Policy
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.wishes import POWER, fitting, profile_for, strategy_for
from omnireuse.errors import ConfigError, UnknownNameError

__all__ = ["DEFAULT", "enable"]

DEFAULT = Strategy(policy=FixedSchedule(speedup=2.0, power=POWER), forecaster=Blend())
"""Half of the steps, every branch of a step together, forecast as far as the last computed step has shown it to be
safe. They are closest at the beginning, where guidance bends the path (``python -m bench step_reuse`` shows what other
spacings cost)."""


def enable(
    pipeline: Any,
    backend: str | None = None,
    *,
    policy: Policy | str | None = None,
    forecaster: Forecaster | str | None = None,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
    tolerance: float | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> Handle:
    """Let a pipeline reuse what neighbouring denoising steps have in common.

    Four ways to say how: nothing at all (`DEFAULT`), what is wanted (`speedup`, `computed_steps`, `quality`,
    `tolerance`), the name of a cache backend with its options, or the axes of a strategy.

    Args:
        pipeline: any diffusers pipeline with a `transformer` or `unet`.
        backend: name of a cache backend; `options` are then fields of `DiffusionCacheConfig`.
        policy: a policy or its name; `options` are then the other fields of `Strategy`.
        forecaster: a forecaster or its name; "hold" where a policy is given without one.
        speedup: steps over computed steps, ≥ 1.
        computed_steps: how many steps compute at most.
        quality: PSNR to the full run in dB that a mean over prompts shall reach; needs a profile.
        tolerance: relative L1 error that all reused steps together may be expected to leave in the final latents, > 0:
            0.05 is 5 % of them. Needs no profile: how far to reuse follows from the errors measured on the way
            (`ErrorControl`).
        profile: what `omnireuse.calibrate` found for this pipeline, or its file; half of the steps unless `speedup`,
            `computed_steps` or `quality` is given. With the backend "tea_cache" or "mag_cache" it gives what was
            measured of its options.
        options: fields of `Strategy` with a policy, of `DiffusionCacheConfig` with a backend; with a wish, `region`
            alone, which is "step" unless the pipeline or the profile needs "call".
        group: the ranks that share the forward's collectives (sequence or tensor parallel), which must decide alike;
            None where every rank runs its own model.

    Returns:
        The handle: `summary()`, `events`, `disable()`; also a context manager.

    Raises:
        ConfigError: two ways at once, a value out of range, or a wish that cannot be granted; it says what can be had.
        UnknownNameError: a backend, option, policy or forecaster that does not exist, or a model that the region
            cannot serve.
        UnsupportedModelError: a pipeline without a denoiser.
        StateError: enabled already, or a profile of another pipeline.
    """
    agreement = Agreement(group)
    if backend is not None and profile is not None and backend in BACKENDS:
        options = {**profile_for(pipeline, profile).options_for(backend), **options}
        profile = None
    wishes = {
        "speedup": speedup,
        "computed_steps": computed_steps,
        "quality": quality,
        "tolerance": tolerance,
        "profile": profile,
    }
    wished = [name for name, wish in wishes.items() if wish is not None]
    others = [name for name in options if name != "region"]
    if wished and (backend is not None or policy is not None or forecaster is not None or others):
        given = next(iter(others), "a backend" if backend is not None else "policy or forecaster")
        raise ConfigError(f"enable({wished[0]}=…): it chooses the whole strategy, so {given} cannot be given with it")
    if wished:
        strategy, name, promise = strategy_for(
            pipeline,
            profile=profile,
            speedup=speedup,
            computed_steps=computed_steps,
            quality=quality,
            tolerance=tolerance,
            region=options.get("region"),
        )
        return Handle(pipeline, strategy, name=name, agreement=agreement, promise=promise)
    if backend is not None:
        if policy is not None or forecaster is not None:
            raise ConfigError(
                f"enable(backend={backend!r}): give either a backend or a policy with its forecaster, not both"
            )
        if backend not in BACKENDS:
            raise UnknownNameError(
                "cache backend", backend, BACKENDS, hint="combinations go through policy=, forecaster=, region="
            )
        chosen = BACKENDS[backend]
        return chosen(chosen.config_of(options)).open(pipeline, agreement)
    if policy is None:
        if forecaster is not None or options:
            given = "forecaster" if forecaster is not None else next(iter(options))
            raise ConfigError(
                f"enable({given}=…): a policy or a backend must be given with it; policy='fixed' is the simplest"
            )
        return Handle(pipeline, fitting(DEFAULT, pipeline), name="default", agreement=agreement)
    strategy = Strategy.of(policy, forecaster if forecaster is not None else "hold", **options)
    names = (type(strategy.policy).__name__, type(strategy.forecaster).__name__)
    return Handle(pipeline, strategy, name=f"{names[0]} × {names[1]} on {strategy.region}", agreement=agreement)
