"""One call for any diffusers pipeline."""

from __future__ import annotations

import inspect
import logging
import os
from typing import TYPE_CHECKING, Any, overload

import torch.distributed as dist

from omnireuse.diffusion.arguments import check_arguments
from omnireuse.diffusion.cache.step_caches import config_of, open_step_cache
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.choices import (
    BackendName,
    CacheOptions,
    ForecasterName,
    PolicyName,
    Region,
    StrategyOptions,
    WholeRegion,
)
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.forecasters import Blend, Forecaster
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.policies.fixed import SHORT_RUN
from omnireuse.diffusion.reuse.policy import Policy
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of
from omnireuse.diffusion.reuse.runtime.ranks import forward_group
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.targets import SPREAD, in_fitting_region, profile_for, strategy_for
from omnireuse.diffusion.tuning.switch import SWITCH, check_tune, is_off_by_environment

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["DEFAULT", "enable"]

logger = logging.getLogger("omnireuse")

DEFAULT = Strategy(
    policy=FixedSchedule(speedup=2.0, min_computed=12, min_steps=SHORT_RUN, **SPREAD),
    forecaster=Blend(),
)
"""Half of the steps, but at least 12; runs of fewer than 20 steps compute everything.

All branches of a step are forecast together, as far as the last computed step has shown it to be safe. Computed steps
are spread evenly in (1 − noise)^0.4, of the noise that the run begins with, so they are closest where guidance bends
the path, whatever the scheduler's shift. ``python -m bench few_steps`` shows what the constants are worth."""


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
    tune: bool | int | None = None,
    audit: float = 0.0,
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
    group: dist.ProcessGroup | None = None,
    **options: Unpack[StrategyOptions],
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
    group: dist.ProcessGroup | None = None,
    tune: bool | int | None = None,
    audit: float = 0.0,
    **options: Any,
) -> Handle:
    """Compute some denoising steps of a pipeline and forecast the others, until `disable`.

    There are four ways to say how many::

        enable(pipe)                                       # the default: half of the steps, at least 12
        enable(pipe, speedup=2.5)                          # a target; or computed_steps, quality, tolerance, profile
        enable(pipe, "tea_cache", rel_l1_thresh=0.2)       # a cache backend with its options
        enable(pipe, policy="fixed", forecaster="blend")   # the axes of a strategy

    Args:
        pipeline: any diffusers pipeline with a `transformer`, `unet`, `prior` or `decoder`.
        backend: name of a cache backend; `options` are then fields of `DiffusionCacheConfig`.
        speedup: all steps divided by computed steps, ≥ 1. It counts steps, not time: time falls by the denoiser's
            share of it.
        computed_steps: how many steps compute, ≥ 1.
        quality: PSNR in dB to the full run that at least nine of ten pictures shall reach; needs a profile.
        tolerance: relative L1 error that at least nine of ten final latents stay within, above 0 and below 1: 0.05 is
            5 %. Needs no profile: the first pictures say how many steps compute, and without `tune` the errors measured
            on the way do (`ErrorControl`).
        profile: what `omnireuse.calibrate` found for this pipeline; or its file, its folder, or its id on the Hugging
            Face Hub, ``owner/name`` or ``owner/name@revision``. It computes half of the steps unless
            `speedup`, `computed_steps` or `quality` is given. A number of steps that it has no plan for is computed all
            the same, without a promise. With the backend "tea_cache" or "mag_cache" it gives the
            measured coefficients or ratios.
        policy: a policy or its name; `options` are then the other fields of `Strategy`, such as `quantity`.
        forecaster: a forecaster or its name; "hold" where a policy is given without one.
        region: what is skipped. Without a policy "step" or "call"; by default "step", or "call" where the pipeline or
            the profile needs it.
        group: the ranks that share the forward's collectives (sequence or tensor parallel) and must decide alike. By
            default those of diffusers' `enable_parallelism` or of the device mesh of the parameters, so make the model
            parallel first; none where every rank runs its own model.
        tune: measure the first pictures of each kind, which are computed in full, and go on with the plan that leaves
            the least error in them: True, False, or how many pictures at most (3 by default). It goes with the default,
            `speedup`, `computed_steps` and `tolerance`. Plans are kept on disk (`omnireuse cache list`).
            OMNIREUSE_TUNE=0 turns it off.
        audit: share of the pipeline's calls, in 0…1, that are made again in full after their pictures are done;
            `summary().audits` holds the error of each. It goes with the default, the targets and a profile.
        options: with a backend, fields of `DiffusionCacheConfig`; with a policy, fields of `Strategy`.

    Returns:
        The handle: `summary()` says what was reused, `disable()` restores the pipeline. It is a context manager, too.
        You need not keep it: `omnireuse.handle_of(pipeline)` returns it, `omnireuse.disable(pipeline)` ends reuse.

    Raises:
        ConfigError: a value is out of range, an option belongs somewhere else, two ways are given at once, or a target
            cannot be reached; the error says what can be had.
        WrongTypeError: a value is of the wrong kind.
        UnknownNameError: a backend, option, policy or forecaster does not exist (the error names the nearest), or the
            model has no declaration for the region.
        UnsupportedModelError: the pipeline has no denoiser, or one that the region cannot serve.
        StateError: reuse is enabled already, or the profile belongs to another pipeline.
        MissingExtraError: the backend needs a library that is not installed.
    """
    targets = _given(speedup=speedup, computed_steps=computed_steps, quality=quality, tolerance=tolerance)
    axes = {name: options.pop(name) for name in [*options] if name in StrategyOptions.__annotations__}
    axes = _given(region=region, **axes)
    check_arguments(
        pipeline,
        backend=backend,
        policy=policy,
        forecaster=forecaster,
        profile=profile,
        targets=targets,
        axes=axes,
        options=options,
        tune=tune,
        audit=audit,
        parameters=[*inspect.signature(enable).parameters, *StrategyOptions.__annotations__],
    )
    agreement = Agreement(group if group is not None else forward_group(denoisers_of(pipeline)))
    if backend is not None:
        if profile is not None:
            options = {**profile_for(pipeline, profile).options_for(backend), **options}
        return open_step_cache(backend, config_of(backend, options), pipeline, agreement)
    if policy is not None:
        strategy = Strategy.of(policy, "hold" if forecaster is None else forecaster, **axes)
        decides, forecasts = type(strategy.policy).__name__, type(strategy.forecaster).__name__
        return Handle(pipeline, strategy, name=f"{decides} × {forecasts} on {strategy.region}", agreement=agreement)
    if targets or profile is not None:
        if computed_steps is not None:
            targets["computed_steps"] = int(computed_steps)
        chosen = strategy_for(pipeline, profile=profile, region=region, **targets)
        pictures, untuned = (0, "a profile") if profile is not None else _tuning(tune, chosen.strategy, agreement)
        return Handle(
            pipeline,
            chosen.strategy,
            name=chosen.name,
            agreement=agreement,
            promise=chosen.promise,
            like=chosen.like,
            pictures=pictures,
            untuned=untuned,
            audit=audit,
            tolerance=tolerance,
            adapts=region is None,
        )
    strategy = in_fitting_region(DEFAULT, pipeline)
    pictures, untuned = _tuning(tune, strategy, agreement)
    return Handle(
        pipeline,
        strategy,
        name="default",
        agreement=agreement,
        pictures=pictures,
        untuned=untuned,
        audit=audit,
        adapts=True,
    )


def _tuning(tune: bool | int | None, strategy: Strategy, agreement: Agreement) -> tuple[int, str]:
    """How many pictures are measured at most, and why none are."""
    pictures = check_tune(tune)
    if not pictures:
        return 0, "tune=False"
    if is_off_by_environment():
        return 0, f"{SWITCH} turns it off"
    why = ""
    if strategy.region != "step":
        why = f"region {strategy.region!r} is not tuned"
    elif not agreement.is_alone:
        why = "ranks share the forward pass; tune on one rank, and the others find the plan"
    if why:
        logger.info("tuning is off: %s", why)
    return (0, why) if why else (pictures, "")


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
