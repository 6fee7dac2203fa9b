"""What a shared encoder cache holds, hands out and reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from omnireuse.errors import ConfigError

__all__ = ["CacheEvent", "EncoderKey", "Entry", "ItemTooLargeError", "Lease", "Outcome"]


class ItemTooLargeError(ConfigError):
    """An item that is larger than the whole cache: waiting for room would never end."""


@dataclass(frozen=True, kw_only=True)
class EncoderKey:
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


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A reference to an entry by one input position of one request; the entry stays while it is held."""

    key: EncoderKey
    request_id: str
    position: int
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class CacheEvent:
    """Something that happened to an entry, for whoever keeps the tensors.

    Args:
        kind: "stored" (committed), "removed" or "cleared" (every entry at once; key is None).
        why: for "removed": evicted, expired, trimmed or aborted.
    """

    kind: str
    key: EncoderKey | None
    num_embeds: int = 0
    why: str = ""


@dataclass(kw_only=True)
class Entry:
    """One encoder output, planned or there, and who refers to it.

    `holders` is ordered: while the output is only planned, the first holder is the one who encodes it.
    """

    num_embeds: int
    num_bytes: int
    holders: dict[tuple[str, int], None] = field(default_factory=dict)
    is_ready: bool = False
    num_pins: int = 0
    idle_since: float = 0.0

    @property
    def may_go(self) -> bool:
        """Whether nothing keeps the entry."""
        return self.is_ready and not self.holders and not self.num_pins
