"""Encoder outputs shared by all requests: who holds what, what stays, what leaves first."""

from omnireuse.core.shared_encoder_cache.config import SharedEncoderCacheConfig
from omnireuse.core.shared_encoder_cache.entries import CacheEvent, EncoderKey, ItemTooLargeError, Lease, Outcome
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
