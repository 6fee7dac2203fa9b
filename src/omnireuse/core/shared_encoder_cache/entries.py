"""What a shared encoder cache holds, hands out and reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from omnireuse.errors import ConfigError

__all__ = ["CacheEvent", "EncoderKey", "Entry", "ItemTooLargeError", "Lease", "Outcome"]


class ItemTooLargeError(ConfigError):
    """An item that is larger than the whole cache: waiting for room would never end."""


# What is made or hashed on every access is a NamedTuple: a frozen dataclass takes several times as long for both.


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
    """What a lease stands for."""

    HIT = "hit"
    """The output is there: use it."""
    JOINED = "joined"
    """Somebody is encoding it: it will be there when their step is done."""
    RESERVED = "reserved"
    """Room is set aside: encode it, then commit or abort."""


class Lease(NamedTuple):
    """A reference to an entry by one input position of one request; the entry stays while it is held."""

    key: EncoderKey
    request_id: str
    position: int
    outcome: Outcome


class CacheEvent(NamedTuple):
    """Something that happened to an entry, for whoever keeps the tensors.

    Args:
        kind: "stored" (committed), "removed" or "cleared" (every entry at once; key is None).
        why: for "removed": evicted, expired, trimmed or aborted.
    """

    kind: str
    key: EncoderKey | None
    num_embeds: int = 0
    why: str = ""


@dataclass(kw_only=True, slots=True)
class Entry:
    """One encoder output, planned or there, and who refers to it.

    `holders` is ordered: while the output is only planned, the first holder is the one who encodes it. `is_idle` says
    that the output is there and neither holder nor pin keeps it; the ledger sets it, together with its sums.
    """

    num_embeds: int
    num_bytes: int
    holders: dict[tuple[str, int], None] = field(default_factory=dict)
    is_ready: bool = False
    num_pins: int = 0
    is_idle: bool = False
    idle_since: float = 0.0
