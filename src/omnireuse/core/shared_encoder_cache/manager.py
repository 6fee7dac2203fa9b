"""`SharedEncoderCacheManager`: one encoder output for every request that shows the same item."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from omnireuse.core.shared_encoder_cache.config import SharedEncoderCacheConfig, require_count
from omnireuse.core.shared_encoder_cache.entries import CacheEvent, EncoderKey, Entry, Lease, Outcome
from omnireuse.core.shared_encoder_cache.ledger import Ledger
from omnireuse.errors import StateError

__all__ = ["SharedEncoderCacheManager"]


class SharedEncoderCacheManager:
    """Decide which encoder outputs stay, by content, for all requests together; no tensor in sight.

    A planned output is set aside with `reserve` and becomes a hit with `commit`. Whoever looks one up holds it until
    `release`; what nobody holds stays until room is needed. One scheduler owns the manager; it has no lock.

    Args:
        config: budgets, policy, time to live.
        clock: seconds, monotonic.
    """

    def __init__(self, config: SharedEncoderCacheConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = Ledger(config, clock)
        self._held: dict[str, dict[int, EncoderKey]] = {}

    def __repr__(self) -> str:
        return f"SharedEncoderCacheManager({self.config}, {self.stats()})"

    @property
    def config(self) -> SharedEncoderCacheConfig:
        """The configuration as it is now, after any `resize`."""
        return self._ledger.config

    def is_ready(self, key: EncoderKey) -> bool:
        """Tell whether the output is there. Takes no reference: it may leave any time."""
        entry = self._ledger.entries.get(key)
        return entry is not None and entry.is_ready and not self._ledger.has_expired(entry)

    def get_num_embeds(self, key: EncoderKey) -> int | None:
        """Return the size of a planned or present output; None if it is neither."""
        entry = self._ledger.entries.get(key)
        return None if entry is None else entry.num_embeds

    def held_positions(self, request_id: str) -> dict[int, EncoderKey]:
        """Return what a request holds, by position (a copy)."""
        return dict(self._held.get(request_id, {}))

    def can_fit(self, num_embeds: int, num_bytes: int = 0) -> bool:
        """Tell whether that much would fit if everything unreferenced left. Changes nothing."""
        return self._ledger.can_fit(num_embeds, num_bytes)

    def lookup(self, key: EncoderKey, request_id: str, position: int) -> Lease | None:
        """Hold the output if it is there; None if it is not, or only planned.

        Raises:
            StateError: the position holds another item.
        """
        entry = self._ledger.live_entry(key)
        if entry is None or not entry.is_ready:
            self._require_position_free(key, request_id, position)
            self._ledger.counters["misses"] += 1
            return None
        self._hold(key, entry, request_id, position)
        self._ledger.counters["hits"] += 1
        return Lease(key, request_id, position, Outcome.HIT)

    def reserve(
        self, key: EncoderKey, request_id: str, position: int, num_embeds: int, num_bytes: int = 0
    ) -> Lease | None:
        """Hold the output, there or planned by another, or else set room aside for it by evicting what nobody holds.

        Args:
            num_embeds: its size in encoder embeddings.
            num_bytes: its size in bytes as far as known; `commit` may correct it.

        Returns:
            A lease whose outcome says what to do; None if there is no room now.

        Raises:
            ItemTooLargeError: it is larger than the whole cache.
            StateError: the position holds another item, the key is known with another size, or pinned entries leave no
                room for it.
        """
        if type(num_embeds) is not int or type(num_bytes) is not int or num_embeds < 0 or num_bytes < 0:
            require_count("reserve(num_embeds)", num_embeds)
            require_count("reserve(num_bytes)", num_bytes)
        entry = self._ledger.live_entry(key)
        if entry is None:
            self._require_position_free(key, request_id, position)
            if not self.make_room(num_embeds, num_bytes):
                self._ledger.counters["no_room"] += 1
                return None
            holder = (request_id, position)
            entry = Entry(num_embeds=num_embeds, num_bytes=num_bytes, holders={holder: None})
            self._ledger.add(key, entry)
            self._held.setdefault(request_id, {})[position] = key
            self._ledger.counters["reserved"] += 1
            return Lease(key, request_id, position, Outcome.RESERVED)
        if entry.num_embeds != num_embeds:
            raise StateError(
                f"reserve({key}): the item must have {entry.num_embeds} embeddings as before, got {num_embeds}; two "
                "different items share a content hash, or the preprocessing changed and the hash did not"
            )
        if self._hold(key, entry, request_id, position):
            self._ledger.counters["hits" if entry.is_ready else "joined"] += 1
        return self._lease(key, entry, (request_id, position))

    def make_room(self, num_embeds: int, num_bytes: int = 0) -> bool:
        """Evict until that much fits; False, with nothing evicted, if it cannot now.

        Raises:
            ItemTooLargeError, StateError: it cannot later either, see `reserve`.
        """
        if not self._ledger.can_fit(num_embeds, num_bytes):
            self._ledger.require_possible(num_embeds, num_bytes)
            return False
        self._ledger.evict_to_fit(num_embeds, num_bytes)
        return True

    def commit(self, lease: Lease, *, num_bytes: int | None = None, encode_seconds: float | None = None) -> None:
        """Say that the output is there: from now on it is a hit.

        Args:
            num_bytes: its true size, where it was not known before.
            encode_seconds: what encoding took; the policy cost-aware keeps the dear ones.

        Raises:
            StateError: the lease is not, or no more, the one that has to encode.
        """
        entry = self._require_leader(lease, "commit")
        if num_bytes is not None:
            self._ledger.num_bytes += require_count("commit(num_bytes)", num_bytes) - entry.num_bytes
            entry.num_bytes = num_bytes
        entry.is_ready = True
        if encode_seconds is not None:
            self._ledger.policy.cost_known(lease.key, encode_seconds)
        self._ledger.counters["committed"] += 1
        self._ledger.tell(CacheEvent(kind="stored", key=lease.key, num_embeds=entry.num_embeds))
        self._ledger.evict_to_fit()

    def abort(self, lease: Lease) -> list[Lease]:
        """Say that the output will not come; room and references go. Returns the leases that had joined and lost it.

        Raises:
            StateError: as for `commit`.
        """
        entry = self._require_leader(lease, "abort")
        holders = list(entry.holders)
        lost = [self._lease(lease.key, entry, holder) for holder in holders[1:]]
        for holder in holders:
            self._ledger.let_go(lease.key, entry, holder)
            del self._held[holder[0]][holder[1]]
            if not self._held[holder[0]]:
                del self._held[holder[0]]
        self._ledger.remove(lease.key, "aborted")
        return lost

    def release(self, request_id: str, position: int) -> Lease | None:
        """Let go of an item; nothing held is fine. An output that is there stays until room is needed.

        Returns:
            The lease of another holder who has to encode the item now, because the one who was to has let go.
        """
        held = self._held.get(request_id)
        if held is None or position not in held:
            return None
        key, holder = held[position], (request_id, position)
        entry = self._ledger.entries[key]
        was_leader = not entry.is_ready and next(iter(entry.holders)) == holder
        self._ledger.let_go(key, entry, holder)
        del held[position]
        if not held:
            del self._held[request_id]
        if was_leader and entry.holders:
            return self._lease(key, entry, next(iter(entry.holders)))
        if was_leader:
            self._ledger.remove(key, "aborted")
        self._ledger.evict_to_fit()  # after a resize, room may be owed
        return None

    def release_request(self, request_id: str) -> list[Lease]:
        """Let go of everything a request holds; returns the leases of others that have to encode now."""
        promoted = [self.release(request_id, position) for position in sorted(self._held.get(request_id, {}))]
        return [lease for lease in promoted if lease is not None and lease.request_id != request_id]

    def pin(self, key: EncoderKey) -> None:
        """Keep an entry even when nobody holds it, until as many `unpin`.

        Raises:
            StateError: the key is not in the cache, or its output is not there yet.
        """
        if not self.is_ready(key):
            raise StateError(f"pin({key}): the output must be there, got {self.explain(key)}")
        self._ledger.keep(key, +1)

    def unpin(self, key: EncoderKey) -> None:
        """Undo one `pin`.

        Raises:
            StateError: the key is not pinned.
        """
        if key not in self._ledger.entries or not self._ledger.entries[key].num_pins:
            raise StateError(f"unpin({key}): the entry must be pinned, got {self.explain(key)}")
        self._ledger.keep(key, -1)
        self._ledger.evict_to_fit()

    def resize(self, *, max_embeds: int | None = None, max_bytes: int | None = None) -> None:
        """Change a budget. What is held beyond a smaller one leaves as soon as it is released."""
        config = self.config
        max_embeds = config.max_embeds if max_embeds is None else max_embeds
        max_bytes = config.max_bytes if max_bytes is None else max_bytes
        self._ledger.configure(replace(config, max_embeds=max_embeds, max_bytes=max_bytes))
        self._ledger.evict_to_fit()

    def trim(self, max_embeds: int = 0) -> int:
        """Evict what nobody holds until at most `max_embeds` are left, if that goes; returns how many went."""
        before = self._ledger.num_embeds
        while self._ledger.num_embeds > max_embeds and self._ledger.num_idle:
            self._ledger.remove(self._ledger.victim(), "trimmed")
        return before - self._ledger.num_embeds

    def sweep(self) -> int:
        """Remove what was unreferenced for longer than the time to live; returns how many entries went."""
        expired = [key for key, entry in self._ledger.entries.items() if self._ledger.has_expired(entry)]
        for key in expired:
            self._ledger.remove(key, "expired")
        return len(expired)

    def clear(self) -> None:
        """Forget everything, references and pins too: the tensors are gone."""
        self._ledger.reset()
        self._held.clear()
        self._ledger.tell(CacheEvent(kind="cleared", key=None))

    def drain_events(self) -> list[CacheEvent]:
        """Return what happened since the last call, oldest first; at most 65,536, then the oldest are dropped."""
        events = list(self._ledger.events)
        self._ledger.events.clear()
        return events

    def stats(self) -> dict[str, int]:
        """Return counters and sizes."""
        return self._ledger.stats()

    def explain(self, key: EncoderKey) -> str:
        """Say in a sentence why a key is or is not a hit, and what keeps it."""
        return self._ledger.describe(key)

    def assert_invariants(self) -> None:
        """Assert that the books balance and that holders and positions say the same."""
        self._ledger.check()
        by_entry = {(key, *holder) for key, entry in self._ledger.entries.items() for holder in entry.holders}
        by_request = {
            (key, request, position) for request, held in self._held.items() for position, key in held.items()
        }
        assert by_entry == by_request, "holders and held positions differ"
        assert all(self._held.values()), "a request that holds nothing is remembered"

    def _hold(self, key: EncoderKey, entry: Entry, request_id: str, position: int) -> bool:
        """Hold the entry there; False if it was held there already."""
        held = self._held.setdefault(request_id, {})
        if position in held:
            self._require_position_free(key, request_id, position)
            return False
        self._ledger.hold(key, entry, (request_id, position))
        held[position] = key
        return True

    def _lease(self, key: EncoderKey, entry: Entry, holder: tuple[str, int]) -> Lease:
        if entry.is_ready:
            return Lease(key, holder[0], holder[1], Outcome.HIT)
        is_leader = next(iter(entry.holders)) == holder
        return Lease(key, holder[0], holder[1], Outcome.RESERVED if is_leader else Outcome.JOINED)

    def _require_position_free(self, key: EncoderKey, request_id: str, position: int) -> None:
        held = self._held.get(request_id)
        if held is not None and held.get(position, key) != key:
            raise StateError(
                f"position {position} of request {request_id!r}: must hold one item at a time, got {key} while it "
                f"holds {held[position]}; release it first"
            )

    def _require_leader(self, lease: Lease, verb: str) -> Entry:
        entry, holder = self._ledger.entries.get(lease.key), (lease.request_id, lease.position)
        if entry is None or entry.is_ready or next(iter(entry.holders)) != holder:
            raise StateError(
                f"{verb}({lease}): the lease must be the one that has to encode, got {self.explain(lease.key)}; every "
                "reserved lease is committed or aborted once, and not after its release"
            )
        return entry
