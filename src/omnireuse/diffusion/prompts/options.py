"""The options of a prompt-embedding cache beyond its size and switch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnireuse.core.stores.memory import EVICTION_POLICIES, check_budget
from omnireuse.core.stores.tier import Tier
from omnireuse.core.stores.tiered import TieredStore
from omnireuse.diffusion.prompts.keys import MAX_CONTENT_BYTES
from omnireuse.errors import ConfigError

__all__ = ["PromptCacheOptions"]

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "eviction": tuple(EVICTION_POLICIES),
    "on_mutation": ("warn", "raise"),
    "weights": ("versions", "storages", "manual"),
    "rows": ("proven", "off"),
    "placement": ("device", "cpu"),
}


@dataclass(frozen=True, kw_only=True)
class PromptCacheOptions:
    """How a prompt-embedding cache behaves.

    Args:
        max_bytes: budget for the stored tensors in bytes of true storage; None for no limit beside ``max_size``.
        eviction: ``lru``, ``lfu`` or ``fifo``.
        ttl_s: seconds an entry lives; None for ever.
        max_content_bytes: largest array or image in an argument that is hashed; a call with a larger one bypasses.
        on_mutation: a stored value that a consumer changed in place is dropped and encoded again; ``warn`` logs who
            had it, ``raise`` fails the request that finds it.
        copy_on_hit: hand out copies, so that consumers may change them.
        checksum: compare the bytes at every hit too (slow): a write that torch does not count shows.
        weights: how a hit notices a weight update. ``versions`` asks all version counters, and whether a storage was
            freed; ``storages`` compares the address of every tensor too; ``manual`` does not look, for an engine that
            calls ``bump_epoch`` after every update.
        rows: ``proven`` looks up a list of prompts one by one, for batch sizes where encoding alone was seen to give
            the same bits (the first list of each size encodes up to eight prompts alone as well); ``off`` treats a
            list as one.
        placement: where tensors of an accelerator are kept: on the ``device``, or in pinned memory of the ``cpu``.
        outside: the tier or tiers behind the process; None for none.

    Raises:
        ConfigError: a value out of range.
    """

    max_bytes: int | None = None
    eviction: str = "lru"
    ttl_s: float | None = None
    max_content_bytes: int = MAX_CONTENT_BYTES
    on_mutation: str = "warn"
    copy_on_hit: bool = False
    checksum: bool = False
    weights: str = "versions"
    rows: str = "proven"
    placement: str = "device"
    outside: Tier | TieredStore | None = None

    def __post_init__(self) -> None:
        check_budget("PromptCacheOptions", "max_bytes", self.max_bytes)
        check_budget("PromptCacheOptions", "max_content_bytes", self.max_content_bytes)
        for name, choices in _CHOICES.items():
            value: Any = getattr(self, name)
            if value not in choices:
                raise ConfigError(
                    f"PromptCacheOptions({name}={value!r}): field must be one of {', '.join(choices)}, got {value!r}"
                )
