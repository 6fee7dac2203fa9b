"""`enable`, one call for any diffusers pipeline: the place that knows its keywords, names and spellings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, overload

import torch.distributed as dist

from omnireuse import enabling
from omnireuse.arguments.checks import check_arguments
from omnireuse.arguments.choices import BackendName, CacheOptions, ForecasterName, PolicyName, StrategyOptions
from omnireuse.arguments.targets import Profiled, strategy_of
from omnireuse.arguments.tune import TuneOptions
from omnireuse.base.validation import kind_error
from omnireuse.handle import Handle
from omnireuse.hooks.opening import Openable
from omnireuse.loop.strategy import Region, WholeRegion
from omnireuse.named.step_caches import GivenCache
from omnireuse.profiles.target import Target
from omnireuse.references import References, WithReferences, axis_for
from omnireuse.tuning.audit import Auditor
from omnireuse.tuning.tuner import Tuned

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from omnireuse.forecasters.base import Forecaster
    from omnireuse.policies.base import Policy
    from omnireuse.profiles.profile import Profile

__all__ = ["enable"]


@overload
def enable(
    pipeline: object,
    backend: None = None,
    *,
    speedup: float | None = None,
    computed_steps: int | None = None,
    quality: float | None = None,
    tolerance: float | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    region: WholeRegion | None = None,
    group: dist.ProcessGroup | None = None,
    tune: bool | int | TuneOptions | None = None,
    audit: float = 0.0,
    references: bool | Literal["host"] | References | None = None,
) -> Handle: ...
@overload
def enable(
    pipeline: object,
    backend: BackendName,
    *,
    profile: Profile | str | os.PathLike[str] | None = None,
    group: dist.ProcessGroup | None = None,
    **options: Unpack[CacheOptions],
) -> Handle: ...
@overload
def enable(
    pipeline: object,
    backend: None = None,
    *,
    policy: Policy | PolicyName,
    forecaster: Forecaster | ForecasterName | None = None,
    region: Region | None = None,
    group: dist.ProcessGroup | None = None,
    references: bool | Literal["host"] | References | None = None,
    **options: Unpack[StrategyOptions],
) -> Handle: ...
@overload
def enable(
    pipeline: object,
    backend: Openable,
    *,
    group: dist.ProcessGroup | None = None,
    references: bool | Literal["host"] | References | None = None,
) -> Handle: ...
def enable(
    pipeline: object,
    backend: BackendName | Openable | None = None,
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
    tune: bool | int | TuneOptions | None = None,
    audit: float = 0.0,
    references: bool | Literal["host"] | References | None = None,
    **options: object,
) -> Handle:
    """Compute some denoising steps of a pipeline and forecast the others, until `disable`.

    There are four ways to say how many:

        enable(pipe)                                       # the default: half of the steps, at least 12
        enable(pipe, speedup=2.5)                          # a target; or computed_steps, quality, tolerance, profile
        enable(pipe, "tea_cache", rel_l1_thresh=0.2)       # a cache backend with its options
        enable(pipe, Strategy.default(speedup=2))          # a strategy: the default without tuning, or one of your own

    Args:
        pipeline: any diffusers pipeline with a `transformer`, `unet`, `prior` or `decoder`.
        backend: name of a cache backend; `options` are then fields of `DiffusionCacheConfig`. Or a `Strategy`, or a
            value of your own with `open(pipeline, group)`, which returns a strategy, its name and extensions.
        speedup: all steps divided by computed steps, ≥ 1. It counts steps, not time: time falls by the denoiser's
            share of it.
        computed_steps: how many steps are computed, ≥ 1.
        quality: PSNR in dB to the full run that at least nine of ten pictures reach, from 15 to 100. With a profile
            this is a guarantee (95 % confidence); without one, an estimate from your first pictures.
        tolerance: relative L1 error that at least nine of ten final latents stay within, above 0 and below 1: 0.05 is
            5 %. Needs no profile: the number of computed steps follows from your first pictures, and without `tune`
            from the errors measured during each run (`ErrorControl`).
        profile: what `omnireuse.calibrate` found for this pipeline; or its file, its folder, or its id on the Hugging
            Face Hub, ``owner/name`` or ``owner/name@revision``. It computes half of the steps unless `speedup`,
            `computed_steps` or `quality` is given. A number of steps that it has no plan for is computed all the same,
            without a promise. With the backend "tea_cache" or "mag_cache" it gives the measured coefficients or ratios.
        policy: a policy or its name; `options` may then name the `prediction_target`, the `signal` and the `axis` of
            `Strategy`.
        forecaster: a forecaster or its name; "hold" if a policy is given without one.
        region: what is skipped. Without a policy "step" or "call"; by default "step", or "call" if the pipeline or
            the profile needs it.
        group: the ranks that share the forward's collectives (sequence or tensor parallel) and must decide alike. By
            default those of diffusers' `enable_parallelism` or of the device mesh of the parameters, so make the model
            parallel first; none if every rank runs its own model.
        tune: measure the first pictures of each kind, which are computed in full, and go on with the plan that leaves
            the least error in them: True, False, how many pictures at most (3 by default; a quality or a tolerance
            takes 6 at least, which fewer cannot judge), or `TuneOptions`. Trial runs follow these pictures and a few
            more full ones; with them no picture takes more than about twice its usual time. It goes with the default
            and the targets. Plans are kept on disk (`omnireuse cache list`). OMNIREUSE_TUNE=0 turns it off.
        audit: share of the pipeline's calls, in 0…1, that are made again in full after their pictures are done;
            `summary().audits` holds the error of each. It goes with the default, the targets and a profile.
        references: of editing models: True computes the references' tokens at the first computed call and at every
            fourth after it. The calls in between use the keys and values that were kept of them; such lean calls are
            an approximation, and add to the error of reuse. "host" keeps them in the memory of the host.
            False computes all tokens at all computed calls. With None, and if pictures are measured with True and
            "host" too, tuning decides: it takes lean calls if they add little to the error of its plan.
        options: fields of `DiffusionCacheConfig` with a backend; with a policy `prediction_target`, `signal`, `axis`.

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
    axes = {name: options.pop(name) for name in StrategyOptions.__annotations__ if name in options}
    target = Target.of("enable", tolerance=tolerance, speedup=speedup, computed_steps=computed_steps, quality=quality)
    ways = {"backend": backend, "policy": policy, "forecaster": forecaster, "region": region, **axes}
    check_arguments(pipeline, target, ways, profile=profile, tune=tune, audit=audit, options=options)
    if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise kind_error("enable", "group", "be a torch.distributed process group", group)
    if isinstance(backend, str):
        axis_for(references, pipeline, None)
        return enabling.enable(pipeline, GivenCache(backend, options, profile), group=group)
    value: Openable
    if policy is not None:
        value = strategy_of(policy, "hold" if forecaster is None else forecaster, region=region or "step", **axes)
    elif backend is not None:
        value = backend
    elif profile is not None:
        value = Profiled(profile, target, region)
    else:
        value = Tuned(target, region, tune)
    aim = target.name if target.is_of_results else ""
    auditors = (Auditor(audit, target.tolerance),) if audit else ()
    return enabling.enable(pipeline, WithReferences(value, references, aim), group=group, extensions=auditors)
