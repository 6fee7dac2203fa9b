"""The cache backend "cache_dit"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnireuse.diffusion.cache.base import StepCacheBackend
from omnireuse.named.cache_dit import cache_dit_library
from omnireuse.named.options import DiffusionCacheConfig

__all__ = ["CacheDiTBackend"]


class CacheDiTBackend(StepCacheBackend):
    """The `cache-dit` library on a pipeline.

    It reads the fields of 'db_cache', and `force_refresh_step_hint` with its policy. The handle counts what the library
    did, and its `strategy` is the native one with the same fields. The library does not report why it computed a step,
    how far off its forecasts are, or how many bytes it keeps.

    Raises:
        MissingExtraError: the library is not installed.
        ConfigError: at `enable`: Fn and Bn exceed a block list, or a group is given, which the library does not take.
        UnsupportedModelError: at `enable`: the library does not know the denoiser.
    """

    name = "cache_dit"

    def __init__(self, config: DiffusionCacheConfig | Mapping[str, Any], **options: Any) -> None:
        cache_dit_library()
        super().__init__(config, **options)
