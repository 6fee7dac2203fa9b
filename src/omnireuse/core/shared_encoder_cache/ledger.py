"""The entries of a shared encoder cache, their sums, and who leaves when room is needed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable

from omnireuse.core.shared_encoder_cache.config import SharedEncoderCacheConfig
from omnireuse.core.shared_encoder_cache.entries import CacheEvent, EncoderKey, Entry, ItemTooLargeError
from omnireuse.core.shared_encoder_cache.policies import make_policy
from omnireuse.errors import StateError

__all__ = ["Ledger"]

_MAX_PENDING_EVENTS = 65_536
_COUNTERS = (
    "hits", "misses", "joined", "reserved", "committed", "aborted", "evicted", "expired", "trimmed", "no_room",
    "events_dropped",
)  # fmt: skip


class Ledger:
    """Entries by key with running sums. An entry that nothing keeps is idle, and only idle entries are evicted.

    Attributes:
        config: budgets, policy and time to live.
        entries: all entries, planned or there.
        num_embeds, num_bytes: sums over all entries.
        idle_embeds, idle_bytes, num_idle: sums over the idle ones.
        events: what happened and was not drained, bounded.
        counters: events by name.
    """

    def __init__(self, config: SharedEncoderCacheConfig, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.events: deque[CacheEvent] = deque()
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.configure(config)
        self.reset()

    def configure(self, config: SharedEncoderCacheConfig) -> None:
        """Take other budgets; evicting down to them is up to the caller."""
        self.config = config
        self._max_embeds = config.max_embeds
        self._max_bytes = math.inf if config.max_bytes is None else config.max_bytes

    def reset(self) -> None:
        """Drop every entry; events and counters stay."""
        self.policy = make_policy(self.config.policy)
        self.entries: dict[EncoderKey, Entry] = {}
        self.num_embeds = self.num_bytes = self.idle_embeds = self.idle_bytes = self.num_idle = 0

    def tell(self, event: CacheEvent) -> None:
        """Add to the event stream; the oldest falls out of a full one, which is counted."""
        if len(self.events) >= _MAX_PENDING_EVENTS:
            self.events.popleft()
            self.counters["events_dropped"] += 1
        self.events.append(event)

    def add(self, key: EncoderKey, entry: Entry) -> None:
        """Add a planned entry."""
        self.entries[key] = entry
        self.num_embeds += entry.num_embeds
        self.num_bytes += entry.num_bytes
        self.policy.stored(key, entry.num_embeds, float(entry.num_embeds))

    def remove(self, key: EncoderKey, why: str) -> None:
        """Remove an entry that nobody holds."""
        entry = self.entries.pop(key)
        if entry.is_idle:
            self._set_idle(entry, False)
        self.num_embeds -= entry.num_embeds
        self.num_bytes -= entry.num_bytes
        self.policy.removed(key, evicted=why == "evicted")
        self.counters[why] += 1
        self.tell(CacheEvent(kind="removed", key=key, num_embeds=entry.num_embeds, why=why))

    def hold(self, key: EncoderKey, entry: Entry, holder: tuple[str, int]) -> None:
        """Add a holder."""
        if entry.is_idle:
            self._set_idle(entry, False)
        entry.holders[holder] = None
        self.policy.used(key)

    def keep(self, key: EncoderKey, by: int) -> None:
        """Add or take a pin."""
        entry = self.entries[key]
        entry.num_pins += by
        is_idle = entry.is_ready and not entry.holders and not entry.num_pins
        if is_idle != entry.is_idle:
            self._set_idle(entry, is_idle)

    def let_go(self, key: EncoderKey, entry: Entry, holder: tuple[str, int]) -> None:
        """Take a holder; the last one of an output that is there makes it idle."""
        del entry.holders[holder]
        if entry.holders:
            return
        entry.holders.clear()  # hands back the table behind the dict, a third of what an idle entry would take
        if entry.is_ready:
            self.policy.idle(key)
            if not entry.num_pins:
                self._set_idle(entry, True)

    def live_entry(self, key: EncoderKey) -> Entry | None:
        """Return an entry, or None if there is none; one that outlived its time goes."""
        entry = self.entries.get(key)
        if entry is not None and self.config.ttl_seconds is not None and self.has_expired(entry):
            self.remove(key, "expired")
            return None
        return entry

    def has_expired(self, entry: Entry) -> bool:
        """Tell whether an idle entry outlived its time."""
        ttl = self.config.ttl_seconds
        return ttl is not None and entry.is_idle and self.clock() - entry.idle_since > ttl

    def can_fit(self, num_embeds: int, num_bytes: int) -> bool:
        """Tell whether that much would fit if everything idle left."""
        num_embeds += self.num_embeds - self.idle_embeds
        return num_embeds <= self._max_embeds and self.num_bytes - self.idle_bytes + num_bytes <= self._max_bytes

    def evict_to_fit(self, num_embeds: int = 0, num_bytes: int = 0) -> None:
        """Evict idle entries until that much fits, or none is left."""
        while (
            self.num_embeds + num_embeds > self._max_embeds or self.num_bytes + num_bytes > self._max_bytes
        ) and self.num_idle:
            self.remove(self.victim(), "evicted")

    def victim(self) -> EncoderKey:
        """Ask the policy who leaves next."""
        key = self.policy.victim(self._is_idle)
        assert isinstance(key, EncoderKey)
        return key

    def _is_idle(self, key: Hashable) -> bool:
        return self.entries[key].is_idle  # type: ignore[index]  # policies hand back the keys they were given

    def require_possible(self, num_embeds: int, num_bytes: int) -> None:
        """Raise unless that much could fit one day without anybody unpinning.

        Raises:
            ItemTooLargeError: it is larger than the cache.
            StateError: it is larger than what pins leave.
        """
        limits = f"max_embeds={self.config.max_embeds}, max_bytes={self.config.max_bytes}"
        if self._exceeds(num_embeds, num_bytes):
            raise ItemTooLargeError(
                f"shared encoder cache({limits}): must hold at least one item, got one of {num_embeds} embeddings and "
                f"{num_bytes} bytes; waiting would never help: raise the budget or make items smaller"
            )
        pinned = [entry for entry in self.entries.values() if entry.num_pins]
        embeds, size = sum(e.num_embeds for e in pinned), sum(e.num_bytes for e in pinned)
        if self._exceeds(num_embeds + embeds, num_bytes + size):
            raise StateError(
                f"shared encoder cache({limits}): {len(pinned)} pinned entries of {embeds} embeddings and {size} bytes "
                f"leave no room for an item of {num_embeds} and {num_bytes}; unpin some or raise the budget"
            )

    def stats(self) -> dict[str, int]:
        """Return counters and sizes."""
        return {
            **self.counters,
            "entries": len(self.entries), "embeds": self.num_embeds, "bytes": self.num_bytes,
            "idle_entries": self.num_idle, "idle_embeds": self.idle_embeds,
        }  # fmt: skip

    def describe(self, key: EncoderKey) -> str:
        """Say why a key is or is not a hit, and what keeps it. Changes nothing, the policy is not asked."""
        entry = self.entries.get(key)
        if entry is None:
            near = next((other for other in self.entries if other.content == key.content), None)
            return "absent" + (f"; the same content is there as {near}" if near else "")
        size = f"{entry.num_embeds} embeddings, {entry.num_bytes} bytes"
        holders = ", ".join(f"{request}[{position}]" for request, position in entry.holders) or "nobody"
        if not entry.is_ready:
            return f"planned ({size}), to be encoded by the first of {holders}; no hit before its commit"
        if not entry.is_idle:
            return f"there ({size}), held by {holders}, {entry.num_pins} pins"
        idle = f"unreferenced for {self.clock() - entry.idle_since:.3g} s"
        return f"there ({size}), {idle}, {'expired' if self.has_expired(entry) else 'leaves when room is needed'}"

    def check(self) -> None:
        """Assert that the sums are the sums and that room is owed only to what is kept."""
        entries = self.entries.values()
        idle = [e for e in entries if e.is_ready and not e.holders and not e.num_pins]
        assert idle == [e for e in entries if e.is_idle], "is_idle is not what it says"
        assert self.num_embeds == sum(e.num_embeds for e in entries), "num_embeds is not the sum"
        assert self.num_bytes == sum(e.num_bytes for e in entries), "num_bytes is not the sum"
        assert self.idle_embeds == sum(e.num_embeds for e in idle), "idle_embeds is not the sum"
        assert self.idle_bytes == sum(e.num_bytes for e in idle), "idle_bytes is not the sum"
        assert self.num_idle == len(idle), "num_idle is not the count"
        assert not (idle and self._exceeds(self.num_embeds, self.num_bytes)), "over budget with idle entries"
        assert all(e.is_ready or e.holders for e in entries), "a planned entry that nobody encodes"

    def _set_idle(self, entry: Entry, is_idle: bool) -> None:
        entry.is_idle = is_idle
        if is_idle:
            entry.idle_since = self.clock()
        sign = 1 if is_idle else -1
        self.num_idle += sign
        self.idle_embeds += sign * entry.num_embeds
        self.idle_bytes += sign * entry.num_bytes

    def _exceeds(self, num_embeds: int, num_bytes: int) -> bool:
        return num_embeds > self._max_embeds or num_bytes > self._max_bytes
