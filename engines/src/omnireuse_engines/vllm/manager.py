"""`SharedEncoderCacheManager`: one encoder output for every request that shows the same item."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from typing import Any

from omnireuse.base.validation import require_size
from omnireuse.errors import StateError
from omnireuse_engines.vllm.eviction import MAX_USES, EncoderEntry, EvictionQueues
from omnireuse_engines.vllm.interface import ItemTooLargeError, Lease, Outcome

__all__ = ["SharedEncoderCacheManager"]

# Looked up once: on CPython 3.11 and older, a member access costs as much as a method call.
_HIT, _JOINED, _RESERVED = Outcome.HIT, Outcome.JOINED, Outcome.RESERVED
_new_lease = tuple.__new__  # what a NamedTuple does, in half of its time
_MAX_PENDING = 65_536
_COUNTERS = (
    "hits", "misses", "joined", "reserved", "committed", "aborted", "evicted", "no_room", "evictions_forgotten",
)  # fmt: skip


class SharedEncoderCacheManager:
    """Decide which encoder outputs stay, by content, for all requests together. It holds no tensors.

    A key says everything that an output depends on: an `EncoderKey`, or a text that does so by itself.

    `reserve` plans an output, and `commit` makes it a hit. A request that looks an output up holds it until `release`.
    An output that nobody holds (an idle one) stays until its room is needed; S3-FIFO says which one goes first. One
    scheduler owns the manager; it has no lock.

    Args:
        max_embeds: capacity in encoder embeddings, ≥ 0.
        max_bytes: a second capacity, in bytes, ≥ 0; None for none.

    Raises:
        WrongTypeError, ConfigError: a capacity that is no integer ≥ 0.
    """

    def __init__(self, max_embeds: int, *, max_bytes: int | None = None) -> None:
        self.max_embeds = require_size("SharedEncoderCacheManager(max_embeds)", max_embeds)
        self.max_bytes = max_bytes
        self._byte_limit = math.inf
        if max_bytes is not None:
            self._byte_limit = require_size("SharedEncoderCacheManager(max_bytes)", max_bytes)
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self._forget()

    def _forget(self) -> None:
        self._evicted: dict[Hashable, None] = {}
        self._queues = EvictionQueues()
        self._entries: dict[Hashable, EncoderEntry] = {}
        self._held: dict[str, dict[int, EncoderEntry]] = {}
        self._num_embeds = self._num_bytes = self._idle_embeds = self._idle_bytes = 0

    def __repr__(self) -> str:
        return f"SharedEncoderCacheManager({self.max_embeds}, max_bytes={self.max_bytes}, {self.stats()})"

    def is_ready(self, key: Hashable) -> bool:
        """Tell whether the output is in the cache. Takes no reference: it may leave any time."""
        entry = self._entries.get(key)
        return entry is not None and entry.waiting is None

    def get_num_embeds(self, key: Hashable) -> int | None:
        """Return the size of a planned or ready output; None if it is neither."""
        entry = self._entries.get(key)
        return None if entry is None else entry.num_embeds

    def held_positions(self, request_id: str) -> dict[int, Any]:
        """A request's outputs, by position (a copy)."""
        return {position: entry.key for position, entry in self._held.get(request_id, {}).items()}

    def stats(self) -> dict[str, int]:
        """Return counters and sizes."""
        return {
            **self._counters,
            "entries": len(self._entries), "embeds": self._num_embeds, "bytes": self._num_bytes,
            "idle_entries": sum(not entry.num_references for entry in self._entries.values()),
            "idle_embeds": self._idle_embeds,
        }  # fmt: skip

    @property
    def num_free_embeds(self) -> int:
        """Embeddings not taken by any entry."""
        return self.max_embeds - self._num_embeds

    @property
    def num_idle_embeds(self) -> int:
        """Embeddings of entries that nobody holds: evicted when their room is needed."""
        return self._idle_embeds

    def hold(self, key: Hashable, request_id: str, position: int) -> bool:
        """Hold the output if it is ready, and tell whether it is.

        Raises:
            StateError: the position holds another item.
        """
        entry = self._entries.get(key)
        if entry is None or entry.waiting is not None:
            held = self._held.get(request_id)
            if held is not None and position in held:
                self._require_position_free(key, request_id, position)
            self._counters["misses"] += 1
            return False
        self._hold(entry, request_id, position)
        return True

    def reserve(
        self, key: Hashable, request_id: str, position: int, num_embeds: int, num_bytes: int = 0
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
        if entry is not None:
            if entry.num_embeds != num_embeds:
                raise StateError(
                    f"reserve({key}): the item must have {entry.num_embeds} embeddings as before, got {num_embeds}; "
                    "two different items share a content hash, or the preprocessing changed and the hash did not"
                )
            return _new_lease(Lease, (key, request_id, position, self._hold(entry, request_id, position)))
        num_embeds = require_size("reserve(num_embeds)", num_embeds)
        if num_bytes != 0:
            num_bytes = require_size("reserve(num_bytes)", num_bytes)
        held = self._held.get(request_id)
        if held is not None and position in held:
            self._require_position_free(key, request_id, position)
        if (
            self._num_embeds + num_embeds > self.max_embeds or self._num_bytes + num_bytes > self._byte_limit
        ) and not self.make_room(num_embeds, num_bytes):
            self._counters["no_room"] += 1
            return None
        entry = self._entries[key] = EncoderEntry(key, num_embeds, num_bytes, (request_id, position))
        self._num_embeds += num_embeds
        self._num_bytes += num_bytes
        self._queues.add(entry)
        if held is None:
            self._held[request_id] = {position: entry}
        else:
            held[position] = entry
        self._counters["reserved"] += 1
        return _new_lease(Lease, (key, request_id, position, _RESERVED))

    def commit(self, lease: Lease, *, num_bytes: int | None = None) -> None:
        """Mark the output as ready: from now on it is a hit.

        Args:
            num_bytes: its true size, if it was not known before.

        Raises:
            StateError: the lease is not, or no longer, the one that has to encode.
        """
        entry = self._require_encoder(lease, "commit")
        if num_bytes is not None:
            self._num_bytes += require_size("commit(num_bytes)", num_bytes) - entry.num_bytes
            entry.num_bytes = num_bytes
        entry.waiting = None
        self._counters["committed"] += 1
        if self._num_bytes > self._byte_limit:  # it has more than there was room for
            self._evict()

    def commit_all(self, keys: Collection[Hashable]) -> None:
        """Mark planned outputs as ready: as `commit`, for a caller that owns all plans and needs no leases.

        Raises:
            StateError: one is not planned.
        """
        for key in keys:
            entry = self._entries.get(key)
            if entry is None or entry.waiting is None:
                raise StateError(f"commit_all({key}): must be planned, got {'absent' if entry is None else 'ready'}")
            entry.waiting = None
        self._counters["committed"] += len(keys)

    def abort(self, lease: Lease) -> list[Lease]:
        """Give up a planned output: its room and all references go. Returns the leases that had joined.

        Raises:
            StateError: as for `commit`.
        """
        entry = self._require_encoder(lease, "abort")
        waiting = entry.waiting or []
        for request_id, position in waiting:
            del self._held[request_id][position]
            if not self._held[request_id]:
                del self._held[request_id]
        self._abort(entry)
        return [Lease(lease.key, request_id, position, _JOINED) for request_id, position in waiting[1:]]

    def release(self, request_id: str, position: int) -> Lease | None:
        """Let go of an item; nothing held is fine. A ready output stays until room is needed.

        Returns:
            The lease of another holder that has to encode the item now, because the one that had to has let go.
        """
        held = self._held.get(request_id)
        entry = None if held is None else held.pop(position, None)
        if entry is None:
            return None
        if not held:
            del self._held[request_id]
        entry.num_references -= 1
        if entry.waiting is not None:
            was_encoder = entry.waiting[0] == (request_id, position)
            entry.waiting.remove((request_id, position))
            if entry.waiting:
                return Lease(entry.key, *entry.waiting[0], _RESERVED) if was_encoder else None
            self._abort(entry)
        elif not entry.num_references:
            self._idle_embeds += entry.num_embeds
            self._idle_bytes += entry.num_bytes
            if self._num_bytes > self._byte_limit:  # a commit reported more than there was room for
                self._evict()
        return None

    def release_request(self, request_id: str) -> list[Lease]:
        """Let go of everything a request holds; returns the leases of others that have to encode now."""
        promoted = [self.release(request_id, position) for position in sorted(self._held.get(request_id, ()))]
        return [lease for lease in promoted if lease is not None and lease.request_id != request_id]

    def reset(self) -> list[Any]:
        """Forget everything, references too, because the encoder's weights changed. Leases of before are void.

        Returns:
            All outputs, and those that were evicted and not drained: the owner of the tensors drops them now, before
            it loads or encodes anything under the same key.
        """
        dropped = [*self._evicted, *(key for key in self._entries if key not in self._evicted)]
        self._forget()
        return dropped

    def can_fit(self, num_embeds: int, num_bytes: int = 0) -> bool:
        """Tell whether that much would fit if everything unreferenced left. Changes nothing."""
        return not self._is_over(num_embeds - self._idle_embeds, num_bytes - self._idle_bytes)

    def make_room(self, num_embeds: int, num_bytes: int = 0) -> bool:
        """Evict until that much fits; False, with nothing evicted, if it cannot now.

        Raises:
            ItemTooLargeError: it is larger than the cache.
        """
        embeds_over, bytes_over = num_embeds - self.max_embeds, num_bytes - self._byte_limit
        if embeds_over > 0 or bytes_over > 0:
            raise ItemTooLargeError(
                f"SharedEncoderCacheManager({self.max_embeds}, max_bytes={self.max_bytes}): must hold at least one "
                f"item, got one of {num_embeds} embeddings and {num_bytes} bytes; waiting would never help: raise the "
                "budget or make items smaller"
            )
        embeds_over, bytes_over = embeds_over + self._num_embeds, bytes_over + self._num_bytes
        if embeds_over > self._idle_embeds or bytes_over > self._idle_bytes:
            return False
        if embeds_over > 0 or bytes_over > 0:
            self._evict(num_embeds, num_bytes)
        return True

    def drain_evicted(self) -> list[Any]:
        """Return the outputs evicted since the last call, oldest first: the owner of the tensors drops them.

        Call it before or after encoding: an output that was planned again is not among them until it goes again. The
        latest 65,536 are kept; the counter `evictions_forgotten` tells of older ones.
        """
        if not self._evicted:
            return []
        drained = [key for key in self._evicted if key not in self._entries]
        for key in drained:
            del self._evicted[key]
        return drained

    def assert_invariants(self) -> None:
        """Assert that the sums are right and that entries and requests agree about holders."""
        references = dict.fromkeys(self._entries, 0)
        for request_id, held in self._held.items():
            assert held, "a request that holds nothing is remembered"
            for position, entry in held.items():
                assert self._entries.get(entry.key) is entry, "a request holds an entry that is gone"
                assert entry.waiting is None or (request_id, position) in entry.waiting, "a holder does not wait"
                references[entry.key] += 1
        assert references == {key: entry.num_references for key, entry in self._entries.items()}, "num_references"
        idle = [entry for entry in self._entries.values() if not entry.num_references]
        assert all(entry.waiting is None for entry in idle), "a planned entry is idle"
        for name, entries in (("_num", self._entries.values()), ("_idle", idle)):
            assert getattr(self, f"{name}_embeds") == sum(e.num_embeds for e in entries), f"{name}_embeds"
            assert getattr(self, f"{name}_bytes") == sum(e.num_bytes for e in entries), f"{name}_bytes"
        has_room_to_give = self._idle_embeds or self._idle_bytes
        assert not (has_room_to_give and self._is_over()), "over budget with idle entries"

    def _hold(self, entry: EncoderEntry, request_id: str, position: int) -> Outcome:
        """Hold the entry at the position, if it is not held there already."""
        held = self._held.get(request_id)
        if held is None:
            self._held[request_id] = {position: entry}
        elif position in held:
            self._require_position_free(entry.key, request_id, position)
            if entry.waiting is None:
                return _HIT
            return _RESERVED if entry.waiting[0] == (request_id, position) else _JOINED
        else:
            held[position] = entry
        if not entry.num_references:
            self._idle_embeds -= entry.num_embeds
            self._idle_bytes -= entry.num_bytes
        entry.num_references += 1
        if entry.num_uses < MAX_USES:
            entry.num_uses += 1
        if entry.waiting is None:
            self._counters["hits"] += 1
            return _HIT
        entry.waiting.append((request_id, position))
        self._counters["joined"] += 1
        return _JOINED

    def _abort(self, entry: EncoderEntry) -> None:
        del self._entries[entry.key]
        self._num_embeds -= entry.num_embeds
        self._num_bytes -= entry.num_bytes
        self._queues.remove(entry)
        self._counters["aborted"] += 1

    def _evict(self, num_embeds: int = 0, num_bytes: int = 0) -> None:
        """Evict idle entries until that much more fits or none is left."""
        while (self._idle_embeds or self._idle_bytes) and (
            self._num_embeds + num_embeds > self.max_embeds or self._num_bytes + num_bytes > self._byte_limit
        ):
            entry = self._queues.pop(self._num_embeds)
            key, embeds, size = entry.key, entry.num_embeds, entry.num_bytes
            del self._entries[key]
            self._num_embeds -= embeds
            self._idle_embeds -= embeds
            self._num_bytes -= size
            self._idle_bytes -= size
            self._counters["evicted"] += 1
            if len(self._evicted) >= _MAX_PENDING:
                del self._evicted[next(iter(self._evicted))]
                self._counters["evictions_forgotten"] += 1
            self._evicted[key] = None

    def _is_over(self, num_embeds: int = 0, num_bytes: int = 0) -> bool:
        return self._num_embeds + num_embeds > self.max_embeds or self._num_bytes + num_bytes > self._byte_limit

    def _require_position_free(self, key: Hashable, request_id: str, position: int) -> None:
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
