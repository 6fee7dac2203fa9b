"""Keys, leases and errors of a shared encoder cache."""

from __future__ import annotations

import hashlib
import secrets
from enum import Enum
from typing import Any, NamedTuple

from omnireuse.errors import ConfigError

__all__ = ["EncoderKey", "ItemTooLargeError", "Lease", "Outcome", "new_weights_epoch"]


class ItemTooLargeError(ConfigError):
    """An item is larger than the whole cache: waiting for room would never end."""


# Types that every access creates or hashes are NamedTuples: a frozen dataclass takes several times as long for both.


class EncoderKey(NamedTuple):
    """Everything an encoder output depends on.

    Attributes:
        content: hash of the item's content and of how it was preprocessed.
        weights_epoch: number of the encoder weights in use; another one when they change, see `new_weights_epoch`.
        adapter: name of the adapter (LoRA) that touches the encoder, "" for none.
        tenant: salt that keeps tenants from finding each other's items, "" to share.
    """

    content: str
    weights_epoch: int = 0
    adapter: str = ""
    tenant: str = ""


def new_weights_epoch(weights: str = "") -> int:
    """Number encoder weights for `EncoderKey.weights_epoch`, so that no output of other weights is found.

    Args:
        weights: a digest of the weights: processes with equal weights find each other's outputs. "" if there is
            none, as after an update in place: the number is random, of 56 bits, and nobody else has it.
    """
    if not weights:
        return secrets.randbits(56)
    return int.from_bytes(hashlib.blake2b(weights.encode(), digest_size=7).digest(), "little")


class Outcome(Enum):
    """The meaning of a lease."""

    HIT = "hit"
    """The output is in the cache: use it."""
    JOINED = "joined"
    """Another request encodes it: it is there when that request's step is done."""
    RESERVED = "reserved"
    """Room is set aside: encode it, then commit or abort."""


class Lease(NamedTuple):
    """A reference to an entry by one input position of one request; the entry stays while it is held."""

    key: Any  # of the manager's type; EncoderKey as a rule
    request_id: str
    position: int
    outcome: Outcome
