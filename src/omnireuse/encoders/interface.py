"""Configuration, requests and results of a shared encoder cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from omnireuse.base.sizes import require_size
from omnireuse.encoders.eviction import POLICIES
from omnireuse.errors import ConfigError, UnknownNameError

__all__ = [
    "CacheEvent", "EncoderKey", "ItemTooLargeError", "Lease", "Outcome", "SharedEncoderCacheConfig",
]  # fmt: skip


class ItemTooLargeError(ConfigError):
    """An item is larger than the whole cache: waiting for room would never end."""


@dataclass(frozen=True, kw_only=True)
class SharedEncoderCacheConfig:
    """Budgets and eviction.

    Args:
        max_embeds: capacity in encoder embeddings, ≥ 0.
        max_bytes: a second capacity, in bytes, ≥ 0; None for none.
        policy: which unreferenced entry leaves first: lru or s3-fifo.
    """

    max_embeds: int
    max_bytes: int | None = None
    policy: str = "lru"

    def __post_init__(self) -> None:
        require_size("SharedEncoderCacheConfig(max_embeds)", self.max_embeds)
        if self.max_bytes is not None:
            require_size("SharedEncoderCacheConfig(max_bytes)", self.max_bytes)
        if self.policy not in POLICIES:
            raise UnknownNameError("eviction policy", self.policy, POLICIES)


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


class CacheEvent(NamedTuple):
    """A change that the owner of the tensors must follow.

    Args:
        kind: "removed" or "cleared" (every entry at once; key is None).
        why: for "removed": evicted or aborted.
    """

    kind: str
    key: EncoderKey | None
    num_embeds: int = 0
    why: str = ""
