"""`SharedEncoderCacheManager`: one encoder output for every request that shows the same item."""

from __future__ import annotations

import functools
from collections.abc import Callable

from omnireuse.base.sizes import require_size
from omnireuse.encoders.entry_table import EncoderEntry, EntryTable
from omnireuse.encoders.interface import (
    CacheEvent,
    EncoderKey,
    Lease,
    Outcome,
    SharedEncoderCacheConfig,
)
from omnireuse.errors import StateError

__all__ = ["SharedEncoderCacheManager"]

# Looked up once: on CPython 3.11 and older, a member access costs as much as a method call.
_HIT, _JOINED, _RESERVED = Outcome.HIT, Outcome.JOINED, Outcome.RESERVED
# A named tuple's own constructor is a function in Python; this one is not.
_lease: Callable[[tuple[EncoderKey, str, int, Outcome]], Lease] = functools.partial(tuple.__new__, Lease)


class SharedEncoderCacheManager(EntryTable):
    """Decide which encoder outputs stay, by content, for all requests together. It holds no tensors.

    `reserve` plans an output, and `commit` makes it a hit. A request that looks an output up holds it until `release`.
    An output that nobody holds stays until its room is needed. One scheduler owns the manager; it has no lock.
    """

    def __init__(self, config: SharedEncoderCacheConfig) -> None:
        super().__init__(config)
        self._held: dict[str, dict[int, EncoderEntry]] = {}

    def __repr__(self) -> str:
        return f"SharedEncoderCacheManager({self.config}, {self.stats()})"

    def held_positions(self, request_id: str) -> dict[int, EncoderKey]:
        """A request's outputs, by position (a copy)."""
        return {position: entry.key for position, entry in self._held.get(request_id, {}).items()}

    def lookup(self, key: EncoderKey, request_id: str, position: int) -> Lease | None:
        """Hold the output if it is ready, else return None.

        Raises:
            StateError: the position holds another item.
        """
        entry = self._entries.get(key)
        if entry is None or entry.waiting is not None:
            self._require_position_free(key, request_id, position)
            self._counters["misses"] += 1
            return None
        self._hold(entry, request_id, position)
        self._counters["hits"] += 1
        return _lease((key, request_id, position, _HIT))

    def reserve(
        self, key: EncoderKey, request_id: str, position: int, num_embeds: int, num_bytes: int = 0
    ) -> Lease | None:
        """Hold the output, ready or planned, or else set room aside for it, evicting unheld outputs.

        Args:
            num_embeds: its size in encoder embeddings.
            num_bytes: its size in bytes as far as known; `commit` may correct it.

        Returns:
            A lease whose outcome says what to do; None if there is no room now.

        Raises:
            ItemTooLargeError: it is larger than the whole cache.
            StateError: the position holds another item, or the key is known with another size.
        """
        entry = self._entries.get(key)
        if entry is None:
            return self._plan(key, request_id, position, num_embeds, num_bytes)
        if entry.num_embeds != num_embeds:
            raise StateError(
                f"reserve({key}): the item must have {entry.num_embeds} embeddings as before, got {num_embeds}; two "
                "different items share a content hash, or the preprocessing changed and the hash did not"
            )
        is_new = self._hold(entry, request_id, position)
        if entry.waiting is None:
            self._counters["hits"] += is_new
            return _lease((key, request_id, position, _HIT))
        self._counters["joined"] += is_new
        is_encoder = entry.waiting[0] == (request_id, position)
        return _lease((key, request_id, position, _RESERVED if is_encoder else _JOINED))

    def _plan(self, key: EncoderKey, request_id: str, position: int, num_embeds: int, num_bytes: int) -> Lease | None:
        if type(num_embeds) is not int or type(num_bytes) is not int or num_embeds < 0 or num_bytes < 0:
            num_embeds = require_size("reserve(num_embeds)", num_embeds)
            num_bytes = require_size("reserve(num_bytes)", num_bytes)
        held = self._held.get(request_id)
        if held is not None:
            self._require_position_free(key, request_id, position)
        if (
            self._num_embeds + num_embeds > self._max_embeds or self._num_bytes + num_bytes > self._max_bytes
        ) and not self.make_room(num_embeds, num_bytes):
            self._counters["no_room"] += 1
            return None
        entry = EncoderEntry(key, num_embeds, num_bytes, (request_id, position))
        self._add(entry)
        if held is None:
            self._held[request_id] = {position: entry}
        else:
            held[position] = entry
        self._counters["reserved"] += 1
        return _lease((key, request_id, position, _RESERVED))

    def commit(self, lease: Lease, *, num_bytes: int | None = None) -> None:
        """Mark the output as ready: from now on it is a hit.

        Args:
            num_bytes: its true size, where it was not known before.

        Raises:
            StateError: the lease is not, or no longer, the one that has to encode.
        """
        entry = self._require_encoder(lease, "commit")
        if num_bytes is not None:
            self._num_bytes += require_size("commit(num_bytes)", num_bytes) - entry.num_bytes
            entry.num_bytes = num_bytes
        entry.waiting = None
        self._counters["committed"] += 1
        self._fit_budgets()

    def abort(self, lease: Lease) -> list[Lease]:
        """Give up a planned output: its room and all references go. Returns the leases that had joined.

        Raises:
            StateError: as for `commit`.
        """
        entry = self._require_encoder(lease, "abort")
        waiting, entry.waiting, entry.num_references = entry.waiting or [], None, 0
        for request_id, position in waiting:
            del self._held[request_id][position]
            if not self._held[request_id]:
                del self._held[request_id]
        self._remove(entry, "aborted")
        return [Lease(lease.key, request_id, position, _JOINED) for request_id, position in waiting[1:]]

    def release(self, request_id: str, position: int) -> Lease | None:
        """Let go of an item; nothing held is fine. A ready output stays until room is needed.

        Returns:
            The lease of another holder that has to encode the item now, because the one that had to has let go.
        """
        held = self._held.get(request_id)
        if held is None or position not in held:
            return None
        entry = held.pop(position)
        if not held:
            del self._held[request_id]
        entry.num_references -= 1
        if entry.waiting is not None:
            was_encoder = entry.waiting[0] == (request_id, position)
            entry.waiting.remove((request_id, position))
            if entry.waiting:
                return Lease(entry.key, *entry.waiting[0], _RESERVED) if was_encoder else None
            self._remove(entry, "aborted")
        elif not entry.num_references:
            self._enter_idle(entry)
        return None

    def release_request(self, request_id: str) -> list[Lease]:
        """Let go of everything a request holds; returns the leases of others that have to encode now."""
        promoted = [self.release(request_id, position) for position in sorted(self._held.get(request_id, ()))]
        return [lease for lease in promoted if lease is not None and lease.request_id != request_id]

    def clear(self) -> None:
        """Forget everything, references too: the tensors are gone."""
        self._reset()
        self._held.clear()
        self._emit(CacheEvent("cleared", None))

    def assert_invariants(self) -> None:
        """Assert that the sums are right and that entries and requests agree about holders."""
        super().assert_invariants()
        num_references = dict.fromkeys(self._entries, 0)
        for request_id, held in self._held.items():
            assert held, "a request that holds nothing is remembered"
            for position, entry in held.items():
                assert self._entries.get(entry.key) is entry, "a request holds an entry that is gone"
                assert entry.waiting is None or (request_id, position) in entry.waiting, "a holder does not wait"
                num_references[entry.key] += 1
        assert num_references == {key: entry.num_references for key, entry in self._entries.items()}, "num_references"

    def _hold(self, entry: EncoderEntry, request_id: str, position: int) -> bool:
        """Hold the entry at the position; False if it was held there already."""
        held = self._held.get(request_id)
        if held is None:
            self._held[request_id] = {position: entry}
        elif position in held:
            self._require_position_free(entry.key, request_id, position)
            return False
        else:
            held[position] = entry
        if not entry.num_references:
            self._leave_idle(entry)
        entry.num_references += 1
        if entry.waiting is not None:
            entry.waiting.append((request_id, position))
        if self._used is not None:
            self._used(entry.key)
        return True

    def _require_position_free(self, key: EncoderKey, request_id: str, position: int) -> None:
        held = self._held.get(request_id, {}).get(position)
        if held is not None and held.key != key:
            raise StateError(
                f"position {position} of request {request_id!r}: must hold one item at a time, got {key} while it "
                f"holds {held.key}; release it first"
            )

    def _require_encoder(self, lease: Lease, verb: str) -> EncoderEntry:
        key, request_id, position, _ = lease
        entry = self._entries.get(key)
        if entry is None or entry.waiting is None or entry.waiting[0] != (request_id, position):
            there = (
                "absent" if entry is None else "ready" if entry.waiting is None else f"to be encoded by {entry.waiting}"
            )
            raise StateError(
                f"{verb}({lease}): the lease must be the one that has to encode, got an item that is {there}; every "
                "reserved lease is committed or aborted once, and not after its release"
            )
        return entry
