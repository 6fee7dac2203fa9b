"""The step caches by name: which options each reads, and which strategy they describe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import torch
import torch.distributed as dist

from omnireuse import messages
from omnireuse.base.validation import as_number, field_error
from omnireuse.errors import ConfigError, UnknownNameError, UnsupportedModelError
from omnireuse.forecasters import Blend, Hold, Polynomial
from omnireuse.hooks.denoisers import denoisers_of, model_name
from omnireuse.hooks.extension import Extension
from omnireuse.hooks.opening import Opened
from omnireuse.hooks.run import Region as HookRegion
from omnireuse.hooks.run import RegionFactory
from omnireuse.hooks.session import Session
from omnireuse.loop.strategy import Region, Strategy, WholeRegion
from omnireuse.models import UNSUPPORTED, block_stack_for
from omnireuse.models.extractors import has_extractor
from omnireuse.named.cache_dit import cache_dit_region
from omnireuse.named.measuring import MagnitudeRecorder
from omnireuse.named.options import (
    CacheDiTOptions,
    DBCacheOptions,
    DiffusionCacheConfig,
    EasyCacheOptions,
    ErrorControlOptions,
    MagCacheOptions,
    SeaCacheOptions,
    StepCountOptions,
    TaylorSeerOptions,
    TeaCacheOptions,
)
from omnireuse.named.published import checkpoint_of, published_coefficients, published_ratios
from omnireuse.policies import (
    EasyCache,
    ErrorControl,
    EveryNth,
    MagCache,
    Never,
    ResidualDiff,
    SeaCache,
    StepMask,
    TeaCache,
)
from omnireuse.policies.base import Policy
from omnireuse.policies.mag_cache import by_branch
from omnireuse.profiles.profile import Profile, profile_for

__all__ = ["STEP_CACHES", "GivenCache", "NamedCache", "StepCache", "config_of"]


@dataclass(frozen=True)
class StepCache:
    """A named step cache.

    Attributes:
        strategy: builds the strategy from the config, for a pipeline.
        reads: the dataclasses of its options.
        skips: the region of its strategy.
        region: builds the region, if another library does the work; by default the strategy's own is taken.
    """

    strategy: Callable[[DiffusionCacheConfig, Any], Strategy]
    reads: tuple[type, ...]
    skips: Region
    region: Callable[[DiffusionCacheConfig, dist.ProcessGroup | None], RegionFactory] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(each.name for group in self.reads for each in fields(group))


def tea_cache(config: DiffusionCacheConfig, pipeline: object) -> Strategy:
    """TeaCache, with the published coefficients of the pipeline's checkpoint unless the config has some.

    A polynomial that is flat somewhere would reuse without end there, so at most ten steps are reused in a row.
    """
    coefficients = config.coefficients or published_coefficients(_model_of(pipeline), checkpoint_of(pipeline))
    policy = TeaCache(rel_l1_thresh=config.rel_l1_thresh, coefficients=tuple(coefficients))
    return Strategy(policy=policy, region="blocks", max_consecutive=10)


def mag_cache(config: DiffusionCacheConfig, pipeline: object) -> Strategy:
    """MagCache, with the published ratios of the pipeline's checkpoint unless the config has some; or a measurement.

    Raises:
        UnsupportedModelError: a measurement on several denoisers, or on a model that an extractor serves.
        UnknownNameError: a measurement on a model without a declaration.
    """
    model = _model_of(pipeline)
    if not config.mag_calibrate:
        ratios = config.mag_ratios
        if ratios is None:
            ratios = published_ratios(model, checkpoint_of(pipeline))
        policy = MagCache(
            threshold=config.mag_threshold,
            max_skip_steps=config.mag_max_skip_steps,
            retention_ratio=config.mag_retention_ratio,
            ratios=by_branch(ratios),
        )
        return Strategy(policy=policy, region="blocks")
    if len(denoisers_of(pipeline)) > 1:
        raise UnsupportedModelError("MagCache calibration measures one denoiser; this pipeline has several")
    if has_extractor(model):
        raise UnsupportedModelError(messages.RATIOS_OF_EXTRACTOR)
    stack = block_stack_for(model)
    recorder = MagnitudeRecorder(num_streams=len(stack.streams), stream=stack.main_stream)
    return Strategy(policy=Never(), forecaster=recorder, region="blocks")


def db_cache(config: DiffusionCacheConfig, _pipeline: object = None) -> Strategy:
    """DBCache with SCM and TaylorSeer.

    With a step mask and `scm_steps_policy="static"` the mask decides alone; with "dynamic" a step is reused if mask,
    threshold, warm-up and limits all allow it. The branches of a step decide together, which under guidance is closer
    to the full run at as many computed steps.

    Source: cache-dit (https://github.com/vipshop/cache-dit), whose fields these are.

    Raises:
        ConfigError: the order of the forecast is above 3, or `force_refresh_step_hint` is given.
    """
    if config.force_refresh_step_hint is not None:
        raise field_error(config, "force_refresh_step_hint", "be None with 'db_cache'", do="'cache_dit' has it")
    if config.enable_taylorseer and config.taylorseer_order > 3:
        raise field_error(config, "taylorseer_order", "be 1, 2 or 3", do="'cache_dit' takes higher ones")
    mask = config.scm_steps_mask_policy
    policy: Policy = ResidualDiff(
        residual_diff_threshold=config.residual_diff_threshold,
        max_warmup_steps=config.max_warmup_steps,
        max_cached_steps=config.max_cached_steps,
        max_continuous_cached_steps=config.max_continuous_cached_steps,
        mask=mask,
    )
    if mask is not None and config.scm_steps_policy == "static":
        policy = StepMask(mask=mask)
    return Strategy(
        policy=policy,
        forecaster=Polynomial(order=config.taylorseer_order) if config.enable_taylorseer else Hold(),
        region="tail",
        first_blocks=config.Fn_compute_blocks,
        last_blocks=config.Bn_compute_blocks,
        shared_cfg_decision=True,
    )


def first_block_cache(config: DiffusionCacheConfig, _pipeline: object) -> Strategy:
    """DBCache whose first block alone always runs: Fn is 1 and Bn is 0."""
    for field, value in (("Fn_compute_blocks", 1), ("Bn_compute_blocks", 0)):
        if getattr(config, field) != value:
            raise field_error(config, field, f"be {value} with 'first_block_cache'", do="'db_cache' takes others")
    return db_cache(config)


def cache_dit(config: DiffusionCacheConfig, _pipeline: object) -> Strategy:
    """The native strategy with the same fields, for the handle; its polynomial is of order 3 at most."""
    order = min(config.taylorseer_order, 3)
    return db_cache(replace(config, taylorseer_order=order, force_refresh_step_hint=None))


def easy_cache(config: DiffusionCacheConfig, _pipeline: object) -> Strategy:
    """EasyCache on all calls of a step. `Blend` was better than holding at every threshold
    (`bench/notes/2026-11-23-strategies.md`)."""
    return Strategy(policy=EasyCache(threshold=config.easy_thresh, warmup=config.easy_warmup_steps), forecaster=Blend())


def sea_cache(config: DiffusionCacheConfig, _pipeline: object) -> Strategy:
    """SeaCache on all calls of a step: the branches start from the same latents and would decide alike."""
    return Strategy(policy=SeaCache(threshold=config.sea_thresh, warmup=config.sea_warmup_steps), forecaster=Blend())


def taylorseer(config: DiffusionCacheConfig, _pipeline: object) -> Strategy:
    """TaylorSeer on the whole output of each branch: one step of each interval computes after the warm-up.

    Source: "From Reusing to Forecasting", arXiv 2503.06923, which forecasts the output of every layer.

    Raises:
        ConfigError: the order is above 3.
    """
    if config.taylorseer_order > 3:
        raise field_error(config, "taylorseer_order", "be 1, 2 or 3 for backend 'taylorseer'")
    policy = EveryNth(every=config.taylorseer_interval, warmup=config.taylorseer_warmup_steps)
    forecaster = Polynomial(order=config.taylorseer_order)
    return Strategy(policy=policy, forecaster=forecaster, region="call", prediction_target="output")


def error_control(config: DiffusionCacheConfig, _pipeline: object) -> Strategy:
    """Error control of the value that the scheduler receives; `Blend` leaves the fewest outliers."""
    policy = ErrorControl(tolerance=config.error_tolerance, max_gap=config.error_max_gap)
    return Strategy(policy=policy, forecaster=Blend())


STEP_CACHES: dict[str, StepCache] = {
    "cache_dit": StepCache(cache_dit, (DBCacheOptions, CacheDiTOptions), "tail", cache_dit_region),
    "db_cache": StepCache(db_cache, (DBCacheOptions,), "tail"),
    "easy_cache": StepCache(easy_cache, (EasyCacheOptions,), "step"),
    "error_control": StepCache(error_control, (ErrorControlOptions,), "step"),
    "first_block_cache": StepCache(first_block_cache, (DBCacheOptions,), "tail"),
    "mag_cache": StepCache(mag_cache, (MagCacheOptions, StepCountOptions), "blocks"),
    "sea_cache": StepCache(sea_cache, (SeaCacheOptions,), "step"),
    "taylorseer": StepCache(taylorseer, (TaylorSeerOptions,), "call"),
    "tea_cache": StepCache(tea_cache, (TeaCacheOptions,), "blocks"),
}
"""Every step cache by its name. `enable`, the selector and the specified backends all read this table."""


def config_of(name: str, options: Mapping[str, Any]) -> DiffusionCacheConfig:
    """The config with options that a user named one by one: naming an order of TaylorSeer turns it on.

    Raises:
        ConfigError: an option is out of range.
        UnknownNameError: this cache does not read an option.
    """
    known = STEP_CACHES[name].options
    for option in options:
        if option not in known:
            readers = [repr(other) for other, cache in STEP_CACHES.items() if option in cache.options]
            hint = f"{' or '.join(readers)} has it" if readers else ""
            raise UnknownNameError(f"option of {name!r}", option, (*known, "profile"), hint=hint)
    turned_on = {"enable_taylorseer": True} if {"taylorseer_order", "enable_taylorseer"} <= {*known} else {}
    return DiffusionCacheConfig.from_dict({**(turned_on if "taylorseer_order" in options else {}), **options})


@dataclass(frozen=True)
class NamedCache:
    """A step cache with its options, as a value that opens itself."""

    name: str
    config: DiffusionCacheConfig

    def open(self, pipeline: object, group: dist.ProcessGroup | None) -> Opened:
        """The strategy for a pipeline.

        Raises:
            ConfigError: an option does not fit the model or the cache.
            MissingExtraError: the library of 'cache_dit' is not installed.
            UnsupportedModelError: the cache cannot serve the pipeline's denoiser.
        """
        cache = STEP_CACHES[self.name]
        _check_serves(self.name, pipeline)
        region = None if cache.region is None else cache.region(self.config, group)
        return cache.strategy(self.config, pipeline), self.name, (_AtWork(self.config.num_inference_steps, region),)


class GivenCache:
    """A step cache with a user's options and those that a profile has measured. Errors are about `enable`'s arguments.

    Args:
        options: keywords.
        profile: or its place; None for none.

    Raises:
        ConfigError: an option is out of range.
        UnknownNameError: this cache does not read an option.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], profile: Profile | str | os.PathLike[str] | None = None
    ) -> None:
        self._name, self._options, self._profile = name, options, profile
        with _as_errors_of_enable({}, options):
            self._config = config_of(name, options)

    def open(self, pipeline: object, group: dist.ProcessGroup | None) -> Opened:
        """As `NamedCache`.

        Raises:
            ConfigError: the profile has no measurements for this cache.
            StateError: the profile belongs to another pipeline.
        """
        config, options = self._config, self._options
        with _as_errors_of_enable({}, options):
            if self._profile is not None:
                measured = profile_for(pipeline, self._profile).options_for(self._name)
                config = config_of(self._name, {**measured, **options})
            return NamedCache(self._name, config).open(pipeline, group)


class _AtWork(Extension):
    """A step cache on a pipeline: its own region, if it has one, and the number of steps that it was told."""

    def __init__(self, steps: int | None, region: RegionFactory | None) -> None:
        self._steps, self._region = steps, region

    def region(self, make: RegionFactory) -> RegionFactory:
        make = self._region or make

        def made(strategy: Strategy, denoisers: Sequence[torch.nn.Module], owner: object) -> HookRegion:
            with _as_errors_of_enable({"first_blocks": "Fn_compute_blocks", "last_blocks": "Bn_compute_blocks"}, {}):
                return make(strategy, denoisers, owner)

        return made

    def attach(self, session: Session) -> None:
        if self._steps is not None:
            session.expect(self._steps)


@contextmanager
def _as_errors_of_enable(names: Mapping[str, str], options: Mapping[str, Any]) -> Iterator[None]:
    """Raise errors about fields as errors about arguments of `enable`, with the number that a text means."""
    try:
        yield
    except ConfigError as error:
        if error.about is None:
            raise
        hints = (as_number(field, options.get(field)) for field in error.about[1])
        raise error.about_arguments("enable", names, next(filter(None, hints), "")) from error


def _check_serves(name: str, pipeline: object) -> None:
    """Refuse a model whose blocks are no stack before anything is looked up for it."""
    model, cache = _model_of(pipeline), STEP_CACHES[name]
    needs_blocks = cache.skips not in get_args(WholeRegion) and cache.region is None
    if needs_blocks and model in UNSUPPORTED and not has_extractor(model):
        others = ", ".join(repr(each) for each, other in STEP_CACHES.items() if other.skips in get_args(WholeRegion))
        why = UNSUPPORTED[model]
        raise UnsupportedModelError(messages.CACHE_UNSUPPORTED, cache=name, model=model, why=why, others=others)


def _model_of(pipeline: object) -> str:
    return model_name(denoisers_of(pipeline)[0])
