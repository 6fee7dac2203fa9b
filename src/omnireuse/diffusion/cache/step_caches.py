"""The step caches by name: which options each reads, and which strategy they describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from omnireuse.diffusion.cache.cache_dit_region import cache_dit_region
from omnireuse.diffusion.cache.magcache.config import MagCacheConfig
from omnireuse.diffusion.cache.magcache.strategy import published_ratios
from omnireuse.diffusion.cache.published import checkpoint_of
from omnireuse.diffusion.cache.teacache.config import TeaCacheConfig, published_coefficients
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.forecasters import Blend, Hold, Polynomial
from omnireuse.diffusion.reuse.policies import EasyCache, ErrorControl, FixedSchedule, ResidualDiff, SeaCache, StepMask
from omnireuse.diffusion.reuse.policy import Policy
from omnireuse.diffusion.reuse.runtime.attachment import RegionFactory
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of, model_name
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.validation import field_error
from omnireuse.errors import UnknownNameError, UnsupportedModelError

__all__ = ["STEP_CACHES", "StepCache", "config_of", "open_step_cache"]


@dataclass(frozen=True)
class StepCache:
    """A named step cache.

    Attributes:
        strategy: builds the strategy from the config, for a pipeline.
        options: the fields of `DiffusionCacheConfig` that it reads.
        region: builds the region, where another library does the work; by default the strategy's own is taken.
    """

    strategy: Callable[[DiffusionCacheConfig, Any], Strategy]
    options: tuple[str, ...]
    region: Callable[[DiffusionCacheConfig, Agreement], RegionFactory] | None = None


def tea_cache(config: DiffusionCacheConfig, pipeline: Any) -> Strategy:
    """TeaCache, with the published coefficients of the pipeline's checkpoint unless the config has some."""
    model = _model_of(pipeline)
    coefficients = config.coefficients or published_coefficients(model, checkpoint_of(pipeline))
    return TeaCacheConfig(config.rel_l1_thresh, coefficients, model).strategy


def mag_cache(config: DiffusionCacheConfig, pipeline: Any) -> Strategy:
    """MagCache, with the published ratios of the pipeline's checkpoint unless the config has some; or a measurement.

    Raises:
        UnsupportedModelError: a measurement on several denoisers.
    """
    model, ratios = _model_of(pipeline), config.mag_ratios
    if config.mag_calibrate and len(denoisers_of(pipeline)) > 1:
        raise UnsupportedModelError("MagCache calibration measures one denoiser; this pipeline has several")
    if ratios is None and not config.mag_calibrate:
        ratios = published_ratios(model, checkpoint_of(pipeline))
    return MagCacheConfig(
        threshold=config.mag_threshold,
        max_skip_steps=config.mag_max_skip_steps,
        retention_ratio=config.mag_retention_ratio,
        mag_ratios=ratios,
        mag_calibrate=config.mag_calibrate,
        transformer_type=model,
    ).strategy


def db_cache(config: DiffusionCacheConfig, _pipeline: Any = None) -> Strategy:
    """DBCache with SCM and TaylorSeer.

    With a step mask and `scm_steps_policy="static"` the mask decides alone; with "dynamic" a step is reused where mask,
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
    policy: Policy = ResidualDiff(
        residual_diff_threshold=config.residual_diff_threshold,
        max_warmup_steps=config.max_warmup_steps,
        max_cached_steps=config.max_cached_steps,
        max_continuous_cached_steps=config.max_continuous_cached_steps,
    )
    if config.scm_steps_mask_policy is not None:
        dynamic = policy if config.scm_steps_policy == "dynamic" else None
        policy = StepMask(mask=config.scm_steps_mask_policy, dynamic=dynamic)
    return Strategy(
        policy=policy,
        forecaster=Polynomial(order=config.taylorseer_order) if config.enable_taylorseer else Hold(),
        region="tail",
        first_blocks=config.Fn_compute_blocks,
        last_blocks=config.Bn_compute_blocks,
        together=True,
    )


def first_block_cache(config: DiffusionCacheConfig, _pipeline: Any) -> Strategy:
    """DBCache whose first block alone always runs: Fn is 1 and Bn is 0."""
    for field, value in (("Fn_compute_blocks", 1), ("Bn_compute_blocks", 0)):
        if getattr(config, field) != value:
            raise field_error(config, field, f"be {value} with 'first_block_cache'", do="'db_cache' takes others")
    return db_cache(config)


def cache_dit(config: DiffusionCacheConfig, _pipeline: Any) -> Strategy:
    """The native strategy with the same fields, for the handle; its polynomial is of order 3 at most."""
    order = min(config.taylorseer_order, 3)
    return db_cache(replace(config, taylorseer_order=order, force_refresh_step_hint=None))


def easy_cache(config: DiffusionCacheConfig, _pipeline: Any) -> Strategy:
    """EasyCache on all calls of a step. `Blend` was better than holding at every threshold (`bench strategies`)."""
    return Strategy(policy=EasyCache(threshold=config.easy_thresh, warmup=config.easy_warmup_steps), forecaster=Blend())


def sea_cache(config: DiffusionCacheConfig, _pipeline: Any) -> Strategy:
    """SeaCache on all calls of a step: the branches start from the same latents and would decide alike."""
    return Strategy(policy=SeaCache(threshold=config.sea_thresh, warmup=config.sea_warmup_steps), forecaster=Blend())


def taylorseer(config: DiffusionCacheConfig, _pipeline: Any) -> Strategy:
    """TaylorSeer on the whole output of each branch: one step of each interval computes after the warm-up.

    Source: "From Reusing to Forecasting", arXiv 2503.06923, which forecasts the output of every layer.

    Raises:
        ConfigError: the order is above 3.
    """
    if config.taylorseer_order > 3:
        raise field_error(config, "taylorseer_order", "be 1, 2 or 3 for backend 'taylorseer'")
    policy = FixedSchedule(every=config.taylorseer_interval, warmup=config.taylorseer_warmup_steps)
    forecaster = Polynomial(order=config.taylorseer_order)
    return Strategy(policy=policy, forecaster=forecaster, region="call", quantity="output")


def error_control(config: DiffusionCacheConfig, _pipeline: Any) -> Strategy:
    """Error control of the value that the scheduler receives; `Blend` leaves the fewest outliers."""
    policy = ErrorControl(tolerance=config.error_tolerance, max_gap=config.error_max_gap)
    return Strategy(policy=policy, forecaster=Blend())


_DB_CACHE = (
    "Bn_compute_blocks",
    "Fn_compute_blocks",
    "enable_taylorseer",
    "force_refresh_step_hint",  # 'db_cache' refuses it and names the cache that has it
    "max_cached_steps",
    "max_continuous_cached_steps",
    "max_warmup_steps",
    "residual_diff_threshold",
    "scm_steps_mask_policy",
    "scm_steps_policy",
    "taylorseer_order",
)
_MAG_CACHE = (
    "mag_calibrate",
    "mag_max_skip_steps",
    "mag_ratios",
    "mag_retention_ratio",
    "mag_threshold",
    "num_inference_steps",
)

STEP_CACHES: dict[str, StepCache] = {
    "cache_dit": StepCache(cache_dit, (*_DB_CACHE, "force_refresh_step_policy"), cache_dit_region),
    "db_cache": StepCache(db_cache, _DB_CACHE),
    "easy_cache": StepCache(easy_cache, ("easy_thresh", "easy_warmup_steps")),
    "error_control": StepCache(error_control, ("error_max_gap", "error_tolerance")),
    "first_block_cache": StepCache(first_block_cache, _DB_CACHE),
    "mag_cache": StepCache(mag_cache, _MAG_CACHE),
    "sea_cache": StepCache(sea_cache, ("sea_thresh", "sea_warmup_steps")),
    "taylorseer": StepCache(taylorseer, ("taylorseer_interval", "taylorseer_order", "taylorseer_warmup_steps")),
    "tea_cache": StepCache(tea_cache, ("coefficients", "rel_l1_thresh")),
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


def open_step_cache(name: str, config: DiffusionCacheConfig, pipeline: Any, agreement: Agreement) -> Handle:
    """Enable a step cache on a pipeline.

    Raises:
        ConfigError: an option does not fit the model or the cache.
        MissingExtraError: the library of 'cache_dit' is not installed.
        UnsupportedModelError: the cache cannot serve the pipeline's denoiser.
        StateError: reuse is enabled on this pipeline already.
    """
    cache = STEP_CACHES[name]
    region = None if cache.region is None else cache.region(config, agreement)
    handle = Handle(pipeline, cache.strategy(config, pipeline), name=name, region=region, agreement=agreement)
    if config.num_inference_steps is not None:
        handle.expect(config.num_inference_steps)
    return handle


def _model_of(pipeline: Any) -> str:
    return model_name(denoisers_of(pipeline)[0])
