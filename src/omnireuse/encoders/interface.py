"""Keys, leases and errors of a shared encoder cache."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from omnireuse.errors import ConfigError

__all__ = ["EncoderKey", "ItemTooLargeError", "Lease", "Outcome"]


class ItemTooLargeError(ConfigError):
    """An item is larger than the whole cache: waiting for room would never end."""


# Types that every access creates or hashes are NamedTuples: a frozen dataclass takes several times as long for both.


class EncoderKey(NamedTuple):
    """Everything an encoder output depends on.

    Args:
        content: hash of the item's content and of how it was preprocessed.
        weights_epoch: number of the encoder weights in use; raise it when they change.
        adapter: name of the adapter (LoRA) that touches the encoder, "" for none.
        tenant: salt that keeps tenants from finding each other's items, "" to share.
    """

    content: str
    weights_epoch: int = 0
    adapter: str = ""
    tenant: str = ""


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

    key: EncoderKey
    request_id: str
    position: int
    outcome: Outcome
