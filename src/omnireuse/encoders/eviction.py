"""The order of eviction: S3-FIFO, which keeps repeatedly used entries through a scan of others that are used once."""

from __future__ import annotations

from collections import OrderedDict

from omnireuse.encoders.interface import EncoderKey

__all__ = ["EncoderEntry", "EvictionQueues"]

_MAX_USES = 3
_SMALL_SHARE = 0.1
_MIN_GHOSTS = 16  # with an empty main queue, none would be remembered


class EncoderEntry:
    """One encoder output, planned or ready.

    Attributes:
        waiting: while the output is planned, its holders (request id, position) in order; the first one encodes it.
            None once it is ready.
        num_references: by requests. Without any, the entry is idle: it may be evicted.
        num_uses: uses since it was added or last passed over, at most three.
    """

    __slots__ = ("key", "num_bytes", "num_embeds", "num_references", "num_uses", "waiting")

    def __init__(self, key: EncoderKey, num_embeds: int, num_bytes: int, encoder: tuple[str, int]) -> None:
        self.key, self.num_embeds, self.num_bytes = key, num_embeds, num_bytes
        self.waiting: list[tuple[str, int]] | None = [encoder]
        self.num_references, self.num_uses = 1, 0

    def count_use(self) -> None:
        """Count one more use."""
        if self.num_uses < _MAX_USES:
            self.num_uses += 1


class EvictionQueues:
    """A small queue of new entries, and a main queue of those that were used again. Deterministic.

    Source: Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023, algorithm 1.
    """

    def __init__(self) -> None:
        self._small: OrderedDict[EncoderKey, EncoderEntry] = OrderedDict()
        self._main: OrderedDict[EncoderKey, EncoderEntry] = OrderedDict()
        self._ghosts: OrderedDict[EncoderKey, None] = OrderedDict()
        self._small_embeds = 0

    def add(self, entry: EncoderEntry) -> None:
        """Join the small queue, or the main one if the key was evicted from the small one not long ago."""
        if entry.key in self._ghosts:
            del self._ghosts[entry.key]
            self._main[entry.key] = entry
        else:
            self._small[entry.key] = entry
            self._small_embeds += entry.num_embeds

    def remove(self, entry: EncoderEntry, *, remember: bool) -> None:
        """Leave the queue. Of keys to remember, as many are kept as the main queue holds."""
        if self._main.pop(entry.key, None) is not None:
            return
        self._leave_small(entry)
        if remember:
            self._ghosts[entry.key] = None
            while len(self._ghosts) > max(len(self._main), _MIN_GHOSTS):
                self._ghosts.popitem(last=False)

    def victim(self, num_embeds: int) -> EncoderEntry:
        """The idle entry to evict next; there is at least one. It stays for now.

        Args:
            num_embeds: embeddings in both queues.
        """
        turns = [self._from_small, self._from_main]
        for turn in turns if self._small_embeds > _SMALL_SHARE * num_embeds else reversed(turns):
            entry = turn()
            if entry is not None:
                return entry
        # All idle entries were promoted on the way.
        return next(entry for entry in self._main.values() if not entry.num_references)

    def _leave_small(self, entry: EncoderEntry) -> None:
        del self._small[entry.key]
        self._small_embeds -= entry.num_embeds

    # An entry in use that comes up goes to the back: left at the front, every victim would have to pass it again.

    def _from_small(self) -> EncoderEntry | None:
        for _ in range(len(self._small)):
            entry = next(iter(self._small.values()))
            if entry.num_uses > 1:
                self._leave_small(entry)
                self._main[entry.key], entry.num_uses = entry, 0
            elif not entry.num_references:
                return entry
            else:
                self._small.move_to_end(entry.key)
        return None

    def _from_main(self) -> EncoderEntry | None:
        for _ in range((_MAX_USES + 1) * len(self._main)):
            entry = next(iter(self._main.values()))
            if not entry.num_references:
                if not entry.num_uses:
                    return entry
                entry.num_uses -= 1
            self._main.move_to_end(entry.key)
        return None
