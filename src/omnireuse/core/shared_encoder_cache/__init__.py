"""Share encoder outputs between requests: count references, set room aside, choose what to evict."""

from omnireuse.core.shared_encoder_cache.interface import (
    CacheEvent,
    EncoderKey,
    ItemTooLargeError,
    Lease,
    Outcome,
    SharedEncoderCacheConfig,
)
from omnireuse.core.shared_encoder_cache.manager import SharedEncoderCacheManager

__all__ = [
    "CacheEvent",
    "EncoderKey",
    "ItemTooLargeError",
    "Lease",
    "Outcome",
    "SharedEncoderCacheConfig",
    "SharedEncoderCacheManager",
]
