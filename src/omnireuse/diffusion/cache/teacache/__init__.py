"""TeaCache as engines know it, in the modules of the specified interface.

Source: "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model", arXiv 2411.19108.
"""

from omnireuse.diffusion.cache.teacache.backend import TeaCacheBackend
from omnireuse.diffusion.cache.teacache.config import TeaCacheConfig, published_coefficients
from omnireuse.diffusion.cache.teacache.extractors import CacheContext, Extractor, get_extractor, register_extractor
from omnireuse.diffusion.cache.teacache.hook import apply_teacache_hook
from omnireuse.diffusion.cache.teacache.state import TeaCacheState

__all__ = [
    "CacheContext",
    "Extractor",
    "TeaCacheBackend",
    "TeaCacheConfig",
    "TeaCacheState",
    "apply_teacache_hook",
    "get_extractor",
    "published_coefficients",
    "register_extractor",
]
