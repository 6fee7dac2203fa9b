"""Per-token model outputs on the CPU, addressed like the engine's paged KV cache."""

import logging

from omnireuse.core.prefix_cache.cache import OmniTensorPrefixCache, PrefixCacheOptions
from omnireuse.core.prefix_cache.manager import OmniPrefixCacheManager

__all__ = ["OmniPrefixCacheManager", "OmniTensorPrefixCache", "PrefixCacheOptions", "logger"]

logger = logging.getLogger(__name__)
"""The logger of every module of this package."""
