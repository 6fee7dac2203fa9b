"""Per-token model outputs on the CPU, mirroring the engine's paged KV cache."""

from omnireuse.core.prefix_cache.cache import OmniTensorPrefixCache
from omnireuse.core.prefix_cache.options import PrefixCacheOptions

__all__ = ["OmniTensorPrefixCache", "PrefixCacheOptions"]
