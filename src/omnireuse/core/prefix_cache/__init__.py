"""Per-token model outputs on the CPU, mirroring the engine's paged KV cache."""

import logging

from omnireuse.core.prefix_cache.cache import OmniTensorPrefixCache
from omnireuse.core.prefix_cache.options import PrefixCacheOptions

__all__ = ["OmniTensorPrefixCache", "PrefixCacheOptions", "logger"]

logger = logging.getLogger(__name__)
"""What every module of this package logs to."""
