"""From a backend's name to the backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnireuse.diffusion.cache.base import CacheBackend, StrategyBackend
from omnireuse.diffusion.cache.cache_dit_backend import CacheDiTBackend
from omnireuse.diffusion.cache.db_cache import DBCacheBackend, FirstBlockCacheBackend
from omnireuse.diffusion.cache.magcache.backend import MagCacheBackend
from omnireuse.diffusion.cache.online import (
    EasyCacheBackend,
    ErrorControlBackend,
    SeaCacheBackend,
    TaylorSeerBackend,
)
from omnireuse.diffusion.cache.teacache.backend import TeaCacheBackend
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.errors import UnknownNameError

__all__ = ["BACKENDS", "get_cache_backend"]

BACKENDS: dict[str, type[StrategyBackend]] = {
    "cache_dit": CacheDiTBackend,
    "db_cache": DBCacheBackend,
    "easy_cache": EasyCacheBackend,
    "error_control": ErrorControlBackend,
    "first_block_cache": FirstBlockCacheBackend,
    "mag_cache": MagCacheBackend,
    "sea_cache": SeaCacheBackend,
    "taylorseer": TaylorSeerBackend,
    "tea_cache": TeaCacheBackend,
}


def get_cache_backend(
    cache_backend: str | None, cache_config: DiffusionCacheConfig | Mapping[str, Any] | None
) -> CacheBackend | None:
    """The backend of that name with that config; None for None and "none".

    Raises:
        UnknownNameError: another name, or a config key that is no option.
        WrongTypeError: a config that is neither a mapping nor a `DiffusionCacheConfig`.
    """
    if cache_backend is None or cache_backend == "none":
        return None
    if cache_backend not in BACKENDS:
        raise UnknownNameError("cache backend", cache_backend, BACKENDS)
    return BACKENDS[cache_backend](DiffusionCacheConfig() if cache_config is None else cache_config)
