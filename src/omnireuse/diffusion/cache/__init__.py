"""The specified interface of diffusion caches, thin over `omnireuse.diffusion.reuse`.

The names below are imported when they are first used. The other caches are found by name
(`omnireuse.diffusion.cache.selector.get_cache_backend`).

- `CacheBackend`: what every cache backend is; a backend of one's own implements `enable` and `refresh`.
- `TeaCacheBackend`, `TeaCacheConfig`, `apply_teacache_hook`: TeaCache for a pipeline, and for a bare denoiser.
- `CacheContext`: what an extractor returns, for denoisers that this library does not declare.
- `PromptEmbedCache`, `install_prompt_embed_cache`, `resolve_prompt_embed_cache_config`, `uninstall_prompt_embed_cache`:
  reuse of prompt embeddings across generations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireuse.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse.diffusion.cache.base import CacheBackend
    from omnireuse.diffusion.cache.prompt_embed_cache import (
        PromptEmbedCache,
        install_prompt_embed_cache,
        resolve_prompt_embed_cache_config,
        uninstall_prompt_embed_cache,
    )
    from omnireuse.diffusion.cache.teacache.backend import TeaCacheBackend
    from omnireuse.diffusion.cache.teacache.config import TeaCacheConfig
    from omnireuse.diffusion.cache.teacache.extractors import CacheContext
    from omnireuse.diffusion.cache.teacache.hook import apply_teacache_hook

__all__ = [
    "CacheBackend",
    "CacheContext",
    "PromptEmbedCache",
    "TeaCacheBackend",
    "TeaCacheConfig",
    "apply_teacache_hook",
    "install_prompt_embed_cache",
    "resolve_prompt_embed_cache_config",
    "uninstall_prompt_embed_cache",
]

_HERE = "omnireuse.diffusion.cache"
_HOMES = {
    "CacheBackend": f"{_HERE}.base",
    "CacheContext": f"{_HERE}.teacache.extractors",
    "PromptEmbedCache": f"{_HERE}.prompt_embed_cache",
    "TeaCacheBackend": f"{_HERE}.teacache.backend",
    "TeaCacheConfig": f"{_HERE}.teacache.config",
    "apply_teacache_hook": f"{_HERE}.teacache.hook",
    "install_prompt_embed_cache": f"{_HERE}.prompt_embed_cache",
    "resolve_prompt_embed_cache_config": f"{_HERE}.prompt_embed_cache",
    "uninstall_prompt_embed_cache": f"{_HERE}.prompt_embed_cache",
}
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
