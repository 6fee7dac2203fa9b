"""One call for any diffusers pipeline."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any, overload

import torch
import torch.distributed as dist

from omnireuse.diffusion.arguments import check_names, check_options, check_positional, check_profile, check_targets
from omnireuse.diffusion.cache.step_caches import config_of, open_step_cache
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.choices import (
    Axis,
    BackendName,
    CacheOptions,
    ForecasterName,
    PolicyName,
    Quantity,
    Region,
    Signal,
    WholeRegion,
)
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.forecasters import Blend, Forecaster
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.policies.fixed import SHORT_RUN
from omnireuse.diffusion.reuse.policy import Policy
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.wishes import NOISE_EXPONENT, POWER, fitting, profile_for, strategy_for
from omnireuse.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["DEFAULT", "enable"]

DEFAULT = Strategy(
    policy=FixedSchedule(speedup=2.0, min_computed=12, min_steps=SHORT_RUN, noise_exponent=NOISE_EXPONENT, power=POWER),
    forecaster=Blend(),
)
"""Half of the steps, but at least 12; runs of fewer than 20 steps compute everything.

All branches of a step are forecast together, as far as the last computed step has shown it to be safe. Computed steps
are spread evenly in (1 − noise)^0.4, so they are closest where guidance bends the path, whatever the
scheduler's shift. ``python -m bench few_steps`` shows what the constants are worth."""


@overload
def enable(
    pipeline: Any,
    backend: None = None,
    *,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
    tolerance: float | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    region: WholeRegion | None = None,
    group: dist.ProcessGroup | None = None,
) -> Handle: ...
@overload
def enable(
    pipeline: Any,
    backend: BackendName,
    *,
    profile: Profile | str | os.PathLike[str] | None = None,
    group: dist.ProcessGroup | None = None,
    **options: Unpack[CacheOptions],
) -> Handle: ...
@overload
def enable(
    pipeline: Any,
    backend: None = None,
    *,
    policy: Policy | PolicyName,
    forecaster: Forecaster | ForecasterName | None = None,
    region: Region | None = None,
    quantity: Quantity | None = None,
    signal: Signal | None = None,
    first_blocks: int | None = None,
    last_blocks: int | None = None,
    axis: Axis | None = None,
    history_dtype: torch.dtype | str | None = None,
    max_consecutive: int | None = None,
    per_sample: bool | None = None,
    together: bool | None = None,
    measure_errors: bool | None = None,
    group: dist.ProcessGroup | None = None,
) -> Handle: ...
def enable(
    pipeline: Any,
    backend: BackendName | None = None,
    *,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
    tolerance: float | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    policy: Policy | PolicyName | None = None,
    forecaster: Forecaster | ForecasterName | None = None,
    region: Region | None = None,
    quantity: Quantity | None = None,
    signal: Signal | None = None,
    first_blocks: int | None = None,
    last_blocks: int | None = None,
    axis: Axis | None = None,
    history_dtype: torch.dtype | str | None = None,
    max_consecutive: int | None = None,
    per_sample: bool | None = None,
    together: bool | None = None,
    measure_errors: bool | None = None,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> Handle:
    """Let a pipeline reuse what neighbouring denoising steps have in common.

    Four ways to say how: nothing at all (`DEFAULT`), what is wanted (`speedup`, `computed_steps`, `quality`,
    `tolerance`), the name of a cache backend with its options, or the axes of a strategy.

    Args:
        pipeline: any diffusers pipeline with a `transformer` or `unet`.
        backend: name of a cache backend; `options` are then fields of `DiffusionCacheConfig`.
        speedup: all steps divided by computed steps, ≥ 1. Time follows as far as the denoiser takes it.
        computed_steps: how many steps compute, ≥ 1.
        quality: PSNR to the full run in dB that a mean over prompts shall reach; needs a profile.
        tolerance: relative L1 error that reuse may leave in the final latents, above 0 and below 1: 0.05 is 5 % of
            them. As a rule a third of it or more is used. Needs no profile: how far to reuse follows from the errors
            measured on the way (`ErrorControl`).
        profile: what `omnireuse.calibrate` found for this pipeline, or its file; half of the steps unless `speedup`,
            `computed_steps` or `quality` is given. With the backend "tea_cache" or "mag_cache" it gives what was
            measured of its options.
        policy: a policy or its name; the arguments below are then the other fields of `Strategy`, which describes them.
        forecaster: a forecaster or its name; "hold" where a policy is given without one.
        region: what is skipped. Without a policy "step" or "call" alone; "step" unless the pipeline or the profile
            needs "call".
        quantity, signal, first_blocks, last_blocks, axis, history_dtype, max_consecutive: with a policy, see
            `Strategy`.
        per_sample, together, measure_errors: with a policy, see `Strategy`.
        group: the ranks that share the forward's collectives (sequence or tensor parallel), which must decide alike;
            None where every rank runs its own model.
        options: fields of `DiffusionCacheConfig`, with a backend.

    Returns:
        The handle: `summary()`, `events`, `disable()`; also a context manager.

    Raises:
        ConfigError: two ways at once, a value out of range, an option that belongs somewhere else, or a target that
            cannot be reached; it says what can be had.
        WrongTypeError: a value of the wrong kind.
        UnknownNameError: a backend, option, policy or forecaster that does not exist, or a model that the region
            cannot serve.
        UnsupportedModelError: a pipeline without a denoiser.
        StateError: enabled already, or a profile of another pipeline.
    """
    check_positional(pipeline, backend)
    targets = _given(speedup=speedup, computed_steps=computed_steps, quality=quality, tolerance=tolerance)
    check_targets(**targets)
    computed_steps = None if computed_steps is None else int(computed_steps)
    choices = _given(
        region=region,
        quantity=quantity,
        signal=signal,
        first_blocks=first_blocks,
        last_blocks=last_blocks,
        axis=axis,
        history_dtype=history_dtype,
        max_consecutive=max_consecutive,
        per_sample=per_sample,
        together=together,
        measure_errors=measure_errors,
    )
    agreement = Agreement(group)
    check_names(backend, policy, forecaster)
    if profile is not None:
        check_profile(profile)
    if backend is not None and profile is not None:
        options = {**profile_for(pipeline, profile).options_for(backend), **options}
        profile = None
    check_options(
        options,
        own=inspect.signature(enable).parameters,
        targets={**targets, **_given(profile=profile)},
        choices=choices,
        backend=backend,
        policy=policy,
        forecaster=forecaster,
    )
    if targets or profile is not None:
        strategy, name, promise = strategy_for(
            pipeline,
            profile=profile,
            speedup=speedup,
            computed_steps=computed_steps,
            quality=quality,
            tolerance=tolerance,
            region=region,
        )
        return Handle(pipeline, strategy, name=name, agreement=agreement, promise=promise)
    if backend is not None:
        return open_step_cache(backend, config_of(backend, options), pipeline, agreement)
    if policy is None:
        if forecaster is not None or choices:
            given = "forecaster" if forecaster is not None else next(iter(choices))
            raise ConfigError(
                f"enable({given}=…): a policy or a backend must be given with it; policy='fixed' is the simplest"
            )
        return Handle(pipeline, fitting(DEFAULT, pipeline), name="default", agreement=agreement)
    strategy = Strategy.of(policy, forecaster if forecaster is not None else "hold", **choices)
    names = (type(strategy.policy).__name__, type(strategy.forecaster).__name__)
    return Handle(pipeline, strategy, name=f"{names[0]} × {names[1]} on {strategy.region}", agreement=agreement)


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
