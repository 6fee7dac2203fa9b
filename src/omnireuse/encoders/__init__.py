"""Encoder outputs shared between requests: references, room, victims, and the tensors."""

from omnireuse.encoders.interface import EncoderKey, ItemTooLargeError, Lease, Outcome, new_weights_epoch
from omnireuse.encoders.manager import SharedEncoderCacheManager

__all__ = [
    "EncoderKey", "ItemTooLargeError", "Lease", "Outcome", "SharedEncoderCacheManager", "new_weights_epoch",
]  # fmt: skip
