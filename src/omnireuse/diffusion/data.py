"""Configuration of diffusion caches, as engines hand it over."""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

from omnireuse.diffusion.reuse.policies import EasyCache, ErrorControl, SeaCache
from omnireuse.diffusion.reuse.policies.mag_cache import checked_ratios
from omnireuse.diffusion.reuse.validation import check_at_least, check_finite_list, check_positive, field_error
from omnireuse.errors import ConfigError, UnknownNameError, WrongTypeError

__all__ = ["DiffusionCacheConfig", "OmniDiffusionConfig"]

BACKEND_VARIABLE = "DIFFUSION_CACHE_BACKEND"
_POSITIVE = (
    "rel_l1_thresh",
    "mag_threshold",
    "residual_diff_threshold",
    "easy_thresh",
    "sea_thresh",
    "error_tolerance",
)


@dataclass
class DiffusionCacheConfig:
    """The options of all backends in one flat record; each backend reads its own.

    Lists are read back as lists. The fields of the specified interface may be given by position too.

    Args:
        rel_l1_thresh: TeaCache: accumulated change at which a step computes, > 0. Raising it reuses more.
        coefficients: TeaCache: five coefficients, highest power first; None takes the published ones for the model.
        mag_threshold: MagCache: accumulated magnitude error at which a step computes, > 0. Raising it reuses more.
        mag_max_skip_steps: MagCache: longest run of reused steps, ≥ 1.
        mag_retention_ratio: MagCache: share of the first steps that always compute, in [0, 1).
        mag_ratios: MagCache: one magnitude ratio for each step, the first 1.0, finite and positive: one list for all
            branches, or one for each, as list, tuple, array or tensor; None takes the published ones for the model.
        mag_calibrate: MagCache: measure the ratios instead of reusing.
        Fn_compute_blocks: DBCache: first blocks that always run, ≥ 1.
        Bn_compute_blocks: DBCache: last blocks that always run, ≥ 0.
        max_warmup_steps: DBCache: first steps that always compute, ≥ 0.
        max_cached_steps: DBCache: most reused steps of a run; -1 for no limit.
        residual_diff_threshold: DBCache: relative change of the first blocks' residual at which a step computes, > 0.
        max_continuous_cached_steps: DBCache: longest run of reused steps; -1 for no limit.
        enable_taylorseer: forecast the skipped residual instead of holding it.
        taylorseer_order: degree of that forecast, ≥ 1.
        scm_steps_mask_policy: SCM: "slow", "medium", "fast", "ultra", or None for no mask.
        scm_steps_policy: SCM: "dynamic" (the threshold may compute more than the mask) or "static".
        num_inference_steps: the step count, where known beforehand, ≥ 1.
        force_refresh_step_hint: step at which everything is computed anew, ≥ 0.
        force_refresh_step_policy: "once" or "repeat".
        taylorseer_interval: TaylorSeer: every so many steps one computes, ≥ 1.
        taylorseer_warmup_steps: TaylorSeer: first steps that always compute, ≥ 0.
        easy_thresh: EasyCache: expected change of the output at which a step computes, > 0. Raising it reuses more.
        easy_warmup_steps: EasyCache: first steps that always compute, ≥ 1.
        sea_thresh: SeaCache: accumulated change of the filtered latents at which a step computes, > 0. Raising it
            reuses more.
        sea_warmup_steps: SeaCache: first steps that always compute, ≥ 1.
        error_tolerance: error control: relative L1 error that reuse may leave in the final latents, above 0 and below
            1. Raising it reuses more.
        error_max_gap: error control: most steps from one computed step to the next, ≥ 1.

    Raises:
        ConfigError: any field out of its range; NaN and infinity are out of every range.
    """

    rel_l1_thresh: float = 0.2
    coefficients: Sequence[float] | None = None
    mag_threshold: float = 0.24
    mag_max_skip_steps: int = 5
    mag_retention_ratio: float = 0.1
    mag_ratios: Any = None
    mag_calibrate: bool = False
    Fn_compute_blocks: int = 1
    Bn_compute_blocks: int = 0
    max_warmup_steps: int = 4
    max_cached_steps: int = -1
    residual_diff_threshold: float = 0.24
    max_continuous_cached_steps: int = 3
    enable_taylorseer: bool = False
    taylorseer_order: int = 1
    scm_steps_mask_policy: str | None = None
    scm_steps_policy: str = "dynamic"
    num_inference_steps: int | None = None
    force_refresh_step_hint: int | None = None
    force_refresh_step_policy: str = "once"
    _: KW_ONLY
    taylorseer_interval: int = 3
    taylorseer_warmup_steps: int = 3
    easy_thresh: float = EasyCache.threshold
    easy_warmup_steps: int = EasyCache.warmup
    sea_thresh: float = SeaCache.threshold
    sea_warmup_steps: int = SeaCache.warmup
    error_tolerance: float = ErrorControl.tolerance
    error_max_gap: int = ErrorControl.max_gap

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            check_positive(self, name)
        if self.error_tolerance >= 1:
            raise field_error(self, "error_tolerance", "be below 1", do="it is a share, not a percentage: 0.05 is 5 %")
        ratio = self.mag_retention_ratio
        if not isinstance(ratio, numbers.Real) or isinstance(ratio, bool) or not 0 <= ratio < 1 or math.isnan(ratio):
            raise field_error(self, "mag_retention_ratio", "be at least 0 and below 1")
        for name, least in (
            ("mag_max_skip_steps", 1),
            ("Fn_compute_blocks", 1),
            ("Bn_compute_blocks", 0),
            ("max_warmup_steps", 0),
            ("max_cached_steps", -1),
            ("max_continuous_cached_steps", -1),
            ("taylorseer_order", 1),
            ("taylorseer_interval", 1),
            ("taylorseer_warmup_steps", 0),
            ("easy_warmup_steps", 1),
            ("sea_warmup_steps", 1),
            ("error_max_gap", 1),
        ):
            check_at_least(self, name, least)
        for name, least in (("num_inference_steps", 1), ("force_refresh_step_hint", 0)):
            if getattr(self, name) is not None:
                check_at_least(self, name, least)
        if self.coefficients is not None:
            found = check_finite_list(self, "coefficients", self.coefficients, length=5)
            self.coefficients = list(found) if isinstance(self.coefficients, list) else found
        if self.mag_ratios is not None:
            self.mag_ratios = checked_ratios(self, "mag_ratios", self.mag_ratios)
        for name in ("mag_calibrate", "enable_taylorseer"):
            if not isinstance(getattr(self, name), bool):
                raise field_error(self, name, "be True or False")
        for name, known in (
            ("scm_steps_mask_policy", (None, "slow", "medium", "fast", "ultra")),
            ("scm_steps_policy", ("static", "dynamic")),
            ("force_refresh_step_policy", ("once", "repeat")),
        ):
            if getattr(self, name) not in known:
                raise field_error(self, name, f"be one of {', '.join(map(repr, known))}")

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> DiffusionCacheConfig:
        """The config with these fields.

        Raises:
            WrongTypeError: not a mapping.
            UnknownNameError: a key that is no field; the nearest one is named.
        """
        if not isinstance(mapping, Mapping):
            raise WrongTypeError(f"DiffusionCacheConfig.from_dict needs a mapping, got {type(mapping).__name__}")
        known = [field.name for field in fields(cls)]
        for key in mapping:
            if key not in known:
                raise UnknownNameError("cache option", key, known)
        return cls(**mapping)


@dataclass
class OmniDiffusionConfig:
    """Which cache a diffusion engine uses.

    Args:
        cache_backend: name of a backend, or None. Where it is None the environment variable DIFFUSION_CACHE_BACKEND
            counts, in any case of letters.
        cache_config: the options: a mapping, a JSON object as text, a `DiffusionCacheConfig`, or None for the defaults.

    Raises:
        ConfigError: text that is not JSON (the error names the position), or any option out of range.
        WrongTypeError: a config of another kind.
    """

    cache_backend: str | None = None
    cache_config: Any = None

    def __post_init__(self) -> None:
        if self.cache_backend is None:
            self.cache_backend = os.environ.get(BACKEND_VARIABLE, "").strip().lower() or None
        self.cache_config = _as_config(self.cache_config)


def _as_config(given: Any) -> DiffusionCacheConfig:
    if given is None:
        return DiffusionCacheConfig()
    if isinstance(given, DiffusionCacheConfig):
        return given
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"OmniDiffusionConfig(cache_config=…): not JSON at line {error.lineno}, "
                f"column {error.colno}: {error.msg}"
            ) from error
    return DiffusionCacheConfig.from_dict(given)
