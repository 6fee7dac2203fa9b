"""From a backend's name to the backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnireuse.base.validation import look_up
from omnireuse.diffusion.cache.base import CacheBackend, StepCacheBackend
from omnireuse.diffusion.cache.cache_dit_backend import CacheDiTBackend
from omnireuse.diffusion.cache.magcache import MagCacheBackend
from omnireuse.diffusion.cache.teacache import TeaCacheBackend
from omnireuse.named.options import DiffusionCacheConfig
from omnireuse.named.step_caches import STEP_CACHES

__all__ = ["get_cache_backend"]

_SPECIFIED: dict[str, type[StepCacheBackend]] = {
    backend.name: backend for backend in (CacheDiTBackend, MagCacheBackend, TeaCacheBackend)
}


def get_cache_backend(
    cache_backend: str | None, cache_config: DiffusionCacheConfig | Mapping[str, Any] | None
) -> CacheBackend | None:
    """The backend of that name with that config; None for None and "none".

    Raises:
        UnknownNameError: the name or a config key does not exist; the error names the nearest one.
        ConfigError: an option is out of range.
        WrongTypeError: the config is neither a mapping nor a `DiffusionCacheConfig`.
    """
    if cache_backend is None or cache_backend == "none":
        return None
    look_up("cache backend", cache_backend, STEP_CACHES)
    config = DiffusionCacheConfig() if cache_config is None else cache_config
    return _SPECIFIED.get(cache_backend, StepCacheBackend)(config, name=cache_backend)
