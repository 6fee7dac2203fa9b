"""Encoder outputs shared between requests: references, room, victims, and the tensors."""

from omnireuse.encoders.interface import EncoderKey, ItemTooLargeError, Lease, Outcome
from omnireuse.encoders.manager import SharedEncoderCacheManager

__all__ = ["EncoderKey", "ItemTooLargeError", "Lease", "Outcome", "SharedEncoderCacheManager"]
