"""MagCache as engines know it, in the modules of the specified interface.

Source: "MagCache: Fast Video Generation with Magnitude-Aware Cache", arXiv 2506.09045.
"""

from omnireuse.diffusion.cache.magcache.backend import MagCacheBackend
from omnireuse.diffusion.cache.magcache.config import MagCacheConfig
from omnireuse.diffusion.cache.magcache.hook import apply_mag_cache_hook
from omnireuse.diffusion.cache.magcache.state import MagCacheState
from omnireuse.diffusion.cache.magcache.strategy import published_ratios

__all__ = [
    "MagCacheBackend",
    "MagCacheConfig",
    "MagCacheState",
    "apply_mag_cache_hook",
    "published_ratios",
]
