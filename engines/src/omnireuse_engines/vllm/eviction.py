"""The order of eviction: S3-FIFO, which keeps repeatedly used entries through a scan of others that are used once."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

__all__ = ["MAX_USES", "EncoderEntry", "EvictionQueues"]

MAX_USES = 3
_SMALL_SHARE = 0.1
_MIN_GHOSTS = 16  # with an empty main queue, none would be remembered
_REMOVED = -1


class EncoderEntry:
    """One encoder output, planned or ready.

    Attributes:
        waiting: while the output is planned, its holders (request id, position) in order; the first one encodes it.
            None once it is ready.
        num_references: by requests. Without any, the entry is idle: it may be evicted.
        num_uses: uses since it was added or last passed over, at most three.
        is_small: whether it is in the small queue.
    """

    __slots__ = ("is_small", "key", "num_bytes", "num_embeds", "num_references", "num_uses", "waiting")

    def __init__(self, key: object, num_embeds: int, num_bytes: int, encoder: tuple[str, int]) -> None:
        self.key, self.num_embeds, self.num_bytes = key, num_embeds, num_bytes
        self.waiting: list[tuple[str, int]] | None = [encoder]
        self.num_references, self.num_uses, self.is_small = 1, 0, True


class EvictionQueues:
    """A small queue of new entries, and a main queue of those that were used again. Deterministic.

    Source: Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023, algorithm 1.
    """

    def __init__(self) -> None:
        self._small: deque[EncoderEntry] = deque()
        self._main: deque[EncoderEntry] = deque()
        self._ghosts: OrderedDict[Any, None] = OrderedDict()
        self._small_embeds = 0

    def add(self, entry: EncoderEntry) -> None:
        """Join the small queue, or the main one if the key was evicted from the small one not long ago."""
        if entry.key not in self._ghosts:
            self._small.append(entry)
            self._small_embeds += entry.num_embeds
            return
        del self._ghosts[entry.key]
        entry.is_small = False
        self._main.append(entry)

    def remove(self, entry: EncoderEntry) -> None:
        """Leave the queue: when its turn comes, it is passed over."""
        entry.num_uses, entry.num_references = _REMOVED, 0
        if entry.is_small:
            self._small_embeds -= entry.num_embeds

    def pop(self, num_embeds: int) -> EncoderEntry:
        """Take out the idle entry to evict next; there is at least one.

        Of the keys evicted from the small queue, as many are remembered as the main queue holds entries.

        Args:
            num_embeds: embeddings in both queues.
        """
        is_small_first = self._small_embeds > _SMALL_SHARE * num_embeds
        while True:  # a second round finds those that the first one promoted
            entry = self._pop_small() if is_small_first else self._pop_main()
            if entry is not None:
                return entry
            is_small_first = not is_small_first

    # An entry in use that comes up goes to the back: left at the front, every victim would have to pass it again.

    def _pop_small(self) -> EncoderEntry | None:
        small = self._small
        for _ in range(len(small)):
            entry = small.popleft()
            if entry.num_uses > 1:
                self._small_embeds -= entry.num_embeds
                entry.num_uses, entry.is_small = 0, False
                self._main.append(entry)
            elif entry.num_references:
                small.append(entry)
            elif entry.num_uses >= 0:
                self._small_embeds -= entry.num_embeds
                self._ghosts[entry.key] = None
                while len(self._ghosts) > _MIN_GHOSTS and len(self._ghosts) > len(self._main):
                    self._ghosts.popitem(last=False)
                return entry
        return None

    def _pop_main(self) -> EncoderEntry | None:
        main = self._main
        for _ in range((MAX_USES + 1) * len(main)):
            entry = main.popleft()
            if not entry.num_references:
                if not entry.num_uses:
                    return entry
                if entry.num_uses < 0:
                    if not main:
                        return None
                    continue
                entry.num_uses -= 1
            main.append(entry)
        return None
