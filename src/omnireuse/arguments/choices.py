"""The names and options that `enable` takes, as types: editors complete them, and type checkers find mistakes.

Each `Literal` names what is in the registry of its kind; tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from omnireuse.loop.strategy import Axis, PredictionTarget, Signal

__all__ = [
    "Axis",
    "BackendName",
    "CacheOptions",
    "ForecasterName",
    "PolicyName",
    "Signal",
    "StrategyOptions",
]

BackendName = Literal[
    "cache_dit",
    "db_cache",
    "easy_cache",
    "error_control",
    "first_block_cache",
    "mag_cache",
    "sea_cache",
    "taylorseer",
    "tea_cache",
]
PolicyName = Literal["easy_cache", "error_control", "fixed", "never", "residual_diff", "scm", "sea_cache", "tea_cache"]
ForecasterName = Literal["blend", "hold", "polynomial", "taylorseer"]


class StrategyOptions(TypedDict, total=False):
    """Options that `enable` takes beside a policy unnamed; `Strategy` describes them."""

    prediction_target: PredictionTarget
    signal: Signal
    axis: Axis


class CacheOptions(TypedDict, total=False):
    """The fields of `DiffusionCacheConfig`, which describes them."""

    rel_l1_thresh: float
    coefficients: Sequence[float] | Any | None
    mag_threshold: float
    mag_max_skip_steps: int
    mag_retention_ratio: float
    mag_ratios: Sequence[float] | Sequence[Sequence[float]] | Any | None
    mag_calibrate: bool
    Fn_compute_blocks: int
    Bn_compute_blocks: int
    max_warmup_steps: int
    max_cached_steps: int
    residual_diff_threshold: float
    max_continuous_cached_steps: int
    enable_taylorseer: bool
    taylorseer_order: int
    scm_steps_mask_policy: Literal["slow", "medium", "fast", "ultra"] | None
    scm_steps_policy: Literal["static", "dynamic"]
    num_inference_steps: int | None
    force_refresh_step_hint: int | None
    force_refresh_step_policy: Literal["once", "repeat"]
    taylorseer_interval: int
    taylorseer_warmup_steps: int
    easy_thresh: float
    easy_warmup_steps: int
    sea_thresh: float
    sea_warmup_steps: int
    error_tolerance: float
    error_max_gap: int
