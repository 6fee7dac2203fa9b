"""Configuration of diffusion caches, as engines pass it.

Each named cache has a dataclass of its options: a field with its type, its range and its default, and a line that
describes it. All else follows: `DiffusionCacheConfig`, what `enable` takes and checks, what it lists in its errors, and
what `python scripts/options.py` writes (the types of `enable`, the table of the docs).
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from omnireuse import messages
from omnireuse.base.validation import (
    Count,
    Index,
    Positive,
    Share,
    Tolerance,
    Unlimited,
    check_fields,
    check_finite_list,
)
from omnireuse.errors import ConfigError, UnknownNameError, WrongTypeError
from omnireuse.policies import EasyCache, ErrorControl, SeaCache
from omnireuse.policies.mag_cache import checked_ratios

__all__ = [
    "CacheDiTOptions",
    "Coefficients",
    "DBCacheOptions",
    "DiffusionCacheConfig",
    "EasyCacheOptions",
    "ErrorControlOptions",
    "MagCacheOptions",
    "OmniDiffusionConfig",
    "Ratios",
    "SeaCacheOptions",
    "StepCountOptions",
    "TaylorSeerOptions",
    "TeaCacheOptions",
]

BACKEND_VARIABLE = "DIFFUSION_CACHE_BACKEND"


def _keep_coefficients(owner: object, field: str) -> None:
    """A list is read back as a list, all else as a tuple."""
    given = getattr(owner, field)
    found = check_finite_list(owner, field, given, length=5)
    object.__setattr__(owner, field, list(found) if isinstance(given, list) else found)


def _keep_ratios(owner: object, field: str) -> None:
    object.__setattr__(owner, field, checked_ratios(owner, field, getattr(owner, field)))


Coefficients = Annotated[Sequence[float] | Any, _keep_coefficients]
"""Exactly five finite numbers, highest power first: a list, a tuple or an array."""
Ratios = Annotated[Sequence[float] | Sequence[Sequence[float]] | Any, _keep_ratios]
"""Numbers above 0, or a list of them for each branch: lists, tuples, arrays or tensors."""


@dataclass
class TeaCacheOptions:
    """TeaCache.

    Args:
        rel_l1_thresh: accumulated change at which a step is computed, > 0.
        coefficients: five coefficients, highest power first; None takes the published ones for the model.
    """

    rel_l1_thresh: Positive = 0.2
    coefficients: Coefficients | None = None


@dataclass
class MagCacheOptions:
    """MagCache.

    Args:
        mag_threshold: accumulated magnitude error at which a step is computed, > 0.
        mag_max_skip_steps: longest run of reused steps, ≥ 1.
        mag_retention_ratio: share of the first steps that are always computed, in [0, 1).
        mag_ratios: one magnitude ratio for each step, the first 1.0, finite and positive: one list for all branches, or
            one for each, as list, tuple, array or tensor; None takes the published ones for the model.
        mag_calibrate: measure the ratios and reuse nothing.
    """

    mag_threshold: Positive = 0.24
    mag_max_skip_steps: Count = 5
    mag_retention_ratio: Share = 0.1
    mag_ratios: Ratios | None = None
    mag_calibrate: bool = False


@dataclass
class DBCacheOptions:
    """DBCache, with SCM and TaylorSeer.

    Args:
        Fn_compute_blocks: first blocks that always run, ≥ 1.
        Bn_compute_blocks: last blocks that always run, ≥ 0.
        max_warmup_steps: first steps that are always computed, ≥ 0.
        max_cached_steps: most reused steps of a run; -1 for no limit.
        residual_diff_threshold: relative change of the first blocks' residual at which a step is computed, > 0.
        max_continuous_cached_steps: longest run of reused steps; -1 for no limit.
        enable_taylorseer: forecast the skipped residual instead of holding it.
        taylorseer_order: degree of that forecast, and of TaylorSeer's, ≥ 1.
        scm_steps_mask_policy: SCM: "slow", "medium", "fast", "ultra", or None for no mask.
        scm_steps_policy: SCM: "dynamic" (the threshold may compute more than the mask) or "static".
    """

    Fn_compute_blocks: Count = 1
    Bn_compute_blocks: Index = 0
    max_warmup_steps: Index = 4
    max_cached_steps: Unlimited = -1
    residual_diff_threshold: Positive = 0.24
    max_continuous_cached_steps: Unlimited = 3
    enable_taylorseer: bool = False
    taylorseer_order: Count = 1
    scm_steps_mask_policy: Literal["slow", "medium", "fast", "ultra"] | None = None
    scm_steps_policy: Literal["static", "dynamic"] = "dynamic"


@dataclass
class StepCountOptions:
    """For caches that depend on the number of steps.

    Args:
        num_inference_steps: number of steps if no scheduler tells it, ≥ 1.
    """

    num_inference_steps: Count | None = None


@dataclass
class CacheDiTOptions:
    """cache-dit, beside those of DBCache.

    Args:
        force_refresh_step_hint: step at which everything is computed anew, ≥ 0.
        force_refresh_step_policy: "once" or "repeat".
    """

    force_refresh_step_hint: Index | None = None
    force_refresh_step_policy: Literal["once", "repeat"] = "once"


@dataclass
class TaylorSeerOptions:
    """TaylorSeer.

    Args:
        taylorseer_order: degree of the forecast, 1, 2 or 3.
        taylorseer_interval: every n-th step is computed, n ≥ 1.
        taylorseer_warmup_steps: first steps that are always computed, ≥ 0.
    """

    taylorseer_order: Count = DBCacheOptions.taylorseer_order
    taylorseer_interval: Count = field(default=3, kw_only=True)
    taylorseer_warmup_steps: Index = field(default=3, kw_only=True)


@dataclass(kw_only=True)
class EasyCacheOptions:
    """EasyCache.

    Args:
        easy_thresh: expected change of the output at which a step is computed, > 0.
        easy_warmup_steps: first steps that are always computed, ≥ 1.
    """

    easy_thresh: Positive = EasyCache.threshold
    easy_warmup_steps: Count = EasyCache.warmup


@dataclass(kw_only=True)
class SeaCacheOptions:
    """SeaCache.

    Args:
        sea_thresh: accumulated change of the filtered latents at which a step is computed, > 0.
        sea_warmup_steps: first steps that are always computed, ≥ 1.
    """

    sea_thresh: Positive = SeaCache.threshold
    sea_warmup_steps: Count = SeaCache.warmup


@dataclass(kw_only=True)
class ErrorControlOptions:
    """Error control.

    Args:
        error_tolerance: relative L1 error that reuse may leave in the final latents, in (0, 1).
        error_max_gap: most steps from one computed step to the next, ≥ 1.
    """

    error_tolerance: Tolerance = ErrorControl.tolerance
    error_max_gap: Count = ErrorControl.max_gap


@dataclass
class DiffusionCacheConfig(
    ErrorControlOptions,  # a dataclass has the fields of its last base first: these are in the specified order
    SeaCacheOptions,
    EasyCacheOptions,
    TaylorSeerOptions,
    CacheDiTOptions,
    StepCountOptions,
    DBCacheOptions,
    MagCacheOptions,
    TeaCacheOptions,
):
    """The options of all caches in one flat record; each cache reads its own.

    The fields of the specified interface may be given by position too. Lists are read back as lists. Raising a
    threshold or the tolerance reuses more.

    Raises:
        ConfigError: a field is out of its range; NaN and infinity are out of every range.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> DiffusionCacheConfig:
        """The config with these fields.

        Raises:
            WrongTypeError: not a mapping.
            UnknownNameError: a key is no field; the error names the nearest one.
            ConfigError: a field is out of its range.
        """
        if not isinstance(mapping, Mapping):
            raise WrongTypeError(f"DiffusionCacheConfig.from_dict needs a mapping, got {type(mapping).__name__}")
        known = [each.name for each in fields(cls)]
        for key in mapping:
            if key not in known:
                raise UnknownNameError("cache option", key, known)
        return cls(**mapping)


_described = (DiffusionCacheConfig, *reversed(DiffusionCacheConfig.__bases__))
DiffusionCacheConfig.__doc__ = "\n\n".join(inspect.getdoc(each) or "" for each in _described)  # for help()


@dataclass
class OmniDiffusionConfig:
    """The cache that a diffusion engine uses.

    Args:
        cache_backend: name of a backend, or None. With None the environment variable DIFFUSION_CACHE_BACKEND counts, in
            any case of letters.
        cache_config: the options: a mapping, a JSON object as text, a `DiffusionCacheConfig`, or None for the defaults.

    Raises:
        ConfigError: the text is not JSON (the error names the position), or an option is out of range.
        UnknownNameError: an option does not exist.
        WrongTypeError: the config is of another kind.
    """

    cache_backend: str | None = None
    cache_config: Any = None

    def __post_init__(self) -> None:
        if self.cache_backend is None:
            self.cache_backend = os.environ.get(BACKEND_VARIABLE, "").strip().lower() or None
        given = {} if self.cache_config is None else self.cache_config
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except json.JSONDecodeError as error:
                raise ConfigError(messages.CONFIG_NOT_JSON, at=error) from error
        self.cache_config = given if isinstance(given, DiffusionCacheConfig) else DiffusionCacheConfig.from_dict(given)
