"""Share encoder outputs between requests: count references, set room aside, choose victims."""

from omnireuse.encoders.interface import (
    CacheEvent,
    EncoderKey,
    ItemTooLargeError,
    Lease,
    Outcome,
    SharedEncoderCacheConfig,
)
from omnireuse.encoders.manager import SharedEncoderCacheManager

__all__ = [
    "CacheEvent",
    "EncoderKey",
    "ItemTooLargeError",
    "Lease",
    "Outcome",
    "SharedEncoderCacheConfig",
    "SharedEncoderCacheManager",
]
