"""DBCache, First Block Cache, SCM and TaylorSeer as engines know them, on this project's own runtime.

Source: cache-dit (https://github.com/vipshop/cache-dit), whose fields these are.
"""

from __future__ import annotations

from typing import Any

from omnireuse.diffusion.cache.base import StrategyBackend
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.forecasters import Hold, Polynomial
from omnireuse.diffusion.reuse.policies import ResidualDiff, StepMask
from omnireuse.diffusion.reuse.policy import Policy
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.validation import field_error

__all__ = ["DBCacheBackend", "FirstBlockCacheBackend", "db_cache_strategy"]


def db_cache_strategy(config: DiffusionCacheConfig) -> Strategy:
    """The strategy that the DBCache, SCM and TaylorSeer fields describe.

    With a step mask and `scm_steps_policy="static"` the mask decides alone, and threshold, warm-up and limits are not
    asked; with "dynamic" a step is reused where the mask allows it and they do. The branches of a step go together,
    which under guidance is closer to the full run at as many computed steps.

    Raises:
        ConfigError: a forecast of a higher order than 3.
    """
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


class DBCacheBackend(StrategyBackend):
    """Reads `Fn_…`, `Bn_compute_blocks`, `residual_diff_threshold`, `max_…_steps`, the TaylorSeer and the SCM fields.

    Raises:
        ConfigError: at `enable`: more blocks than the model has, or `force_refresh_step_hint`, which only cache-dit
            knows.
    """

    name = "db_cache"
    options = (
        "Bn_compute_blocks",
        "Fn_compute_blocks",
        "enable_taylorseer",
        "force_refresh_step_hint",  # read to be refused
        "max_cached_steps",
        "max_continuous_cached_steps",
        "max_warmup_steps",
        "residual_diff_threshold",
        "scm_steps_mask_policy",
        "scm_steps_policy",
        "taylorseer_order",
    )

    def open(self, pipeline: Any, agreement: Agreement) -> Handle:
        """Enable DBCache on the pipeline's denoisers."""
        if self.config.force_refresh_step_hint is not None:
            raise field_error(
                self.config, "force_refresh_step_hint", f"be None with {self.name!r}", do="'cache_dit' has it"
            )
        return Handle(pipeline, db_cache_strategy(self.config), name=self.name, agreement=agreement)


class FirstBlockCacheBackend(DBCacheBackend):
    """DBCache that runs the first block alone: Fn is 1 and Bn 0."""

    name = "first_block_cache"

    def open(self, pipeline: Any, agreement: Agreement) -> Handle:
        """Enable First Block Cache on the pipeline's denoisers."""
        for field, value in (("Fn_compute_blocks", 1), ("Bn_compute_blocks", 0)):
            if getattr(self.config, field) != value:
                raise field_error(self.config, field, f"be {value} with {self.name!r}", do="'db_cache' takes others")
        return super().open(pipeline, agreement)
