"""The specified interface of diffusion caches, thin over `omnireuse.loop`.

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

from omnireuse.base.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse.diffusion.cache.base import CacheBackend
    from omnireuse.diffusion.cache.prompt_embed_cache import (
        PromptEmbedCache,
        install_prompt_embed_cache,
        resolve_prompt_embed_cache_config,
        uninstall_prompt_embed_cache,
    )
    from omnireuse.diffusion.cache.teacache import (
        CacheContext,
        TeaCacheBackend,
        TeaCacheConfig,
        apply_teacache_hook,
    )

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

_HOMES = {
    "base": "CacheBackend",
    "prompt_embed_cache": (
        "PromptEmbedCache install_prompt_embed_cache resolve_prompt_embed_cache_config uninstall_prompt_embed_cache"
    ),
    "teacache": "CacheContext TeaCacheBackend TeaCacheConfig apply_teacache_hook",
}
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
