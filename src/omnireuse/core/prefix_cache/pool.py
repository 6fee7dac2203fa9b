"""The rows of all keys together: readable rows, rows that a write makes stale, releases.

A row belongs to (slot, key) and remembers the step that wrote it. A row that was never written is absent. When hidden
states are written to a slot, rows of other keys that earlier steps wrote there become absent, because the slot now
holds other content.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from omnireuse import messages
from omnireuse.core.prefix_cache.batch import BatchRows
from omnireuse.core.prefix_cache.rows import Integers, Mask, MergeBuffers, RowStore
from omnireuse.errors import StateError

__all__ = ["HIDDEN", "PrefixHits", "RowPool"]

logger = logging.getLogger("omnireuse.core.prefix_cache")

HIDDEN = "hidden_states"


@dataclass(frozen=True)
class PrefixHits:
    """The rows of the requests that start on a prefix hit in this step.

    Args:
        num_rows_R: cached rows of each request of the batch, 0 without a hit.
        slots_S: the slots of all these rows in a row; −1 if the block table has no block for the token.
        planned: by request, its blocks when the hit was planned, and how often each had been released then.
    """

    num_rows_R: Integers
    slots_S: Integers
    planned: Mapping[str, tuple[Integers, Integers]]


class RowPool:
    """Row stores by name over the slots of one KV cache.

    Args:
        num_blocks, block_size: shape of the engine's KV cache.
        absent: the treatment of absent rows, see `PrefixCacheOptions`.

    Attributes:
        stores: the row store of each key.
        step: number of the current step, from 1.
        num_releases: calls of `release` so far.
        counters: rows and events by name.
        lacking: rows of hits that their consumers did not get, by output.
        buffers: memory of merged rows.
    """

    def __init__(self, num_blocks: int, block_size: int, absent: str) -> None:
        self.num_blocks, self.block_size, self._absent = num_blocks, block_size, absent
        self.stores: dict[str, RowStore] = {}
        self.step = 1
        self.num_releases = 0
        self.counters: Counter[str] = Counter()
        self.lacking: Counter[str] = Counter()
        self.buffers = MergeBuffers()
        self._offsets_O = np.arange(block_size)
        self._times_released_B = np.zeros(num_blocks, np.int64)
        self._last_release_B = np.zeros(num_blocks, np.int64)  # the number of its last release, 0 for none

    def add(self, name: str, feature_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Make room for a key; it costs address space until rows are written."""
        self.stores[name] = RowStore(self.num_blocks, self.block_size, feature_shape, dtype)

    def write(
        self, slots: torch.Tensor, rows_by_name: Mapping[str, torch.Tensor], step: int, *, is_whole: bool = False
    ) -> None:
        """Write what one step computed for its tokens, rows (tokens, width); padding slots (−1) are left out.

        Args:
            is_whole: these are all of the step's rows, whether hidden states are among them or not.
        """
        slots_K = slots.numpy().astype(np.int64, copy=False)
        raw_by_name = {name: self.stores[name].raw(rows_KF) for name, rows_KF in rows_by_name.items()}
        if _outside(slots_K, self.num_blocks * self.block_size) is not None:
            is_token_K = slots_K != -1
            self.counters["padding_rows"] += len(slots_K) - int(is_token_K.sum())
            slots_K = slots_K[is_token_K]
            raw_by_name = {name: rows_K[is_token_K] for name, rows_K in raw_by_name.items()}
            self.check_slots(slots_K)
        for name, rows_K in raw_by_name.items():
            self.stores[name].write(slots_K, rows_K, step)
            self.counters["rows_written"] += len(rows_K)
        if is_whole or HIDDEN in raw_by_name:
            for name, store in list(self.stores.items()):  # another thread may add one
                if name not in raw_by_name:
                    store.forget_older(slots_K, step)

    def write_late(
        self, name: str, slots_K: Integers, rows_KF: torch.Tensor, steps_K: Integers, releases_K: Integers
    ) -> None:
        """Write rows that earlier steps computed, unless the slot has since been given to other content.

        Args:
            steps_K: the step that computed each row.
            releases_K: `num_releases` at that time.
        """
        is_current_K = self._last_release_B[slots_K // self.block_size] <= releases_K
        for store in (self.stores[HIDDEN], self.stores[name]):
            is_current_K &= store.version_S[slots_K] <= steps_K
        num_current = int(is_current_K.sum())
        self.counters["stale_rows_dropped"] += len(slots_K) - num_current
        self.counters["rows_written"] += num_current
        store = self.stores[name]
        store.write(slots_K[is_current_K], store.raw(rows_KF)[is_current_K], steps_K[is_current_K])

    def release(self, blocks_N: Integers) -> None:
        """Make these blocks absent for every key, return their memory and fail hits planned on them."""
        for store in self.stores.values():
            store.release(blocks_N)
        self._times_released_B[blocks_N] += 1
        self.num_releases += 1
        self._last_release_B[blocks_N] = self.num_releases

    def plan(self, block_ids: Iterable[int]) -> tuple[Integers, Integers]:
        """Return the blocks of a hit and how often each has been released."""
        blocks_N = self.check_blocks(block_ids)
        return blocks_N, self._times_released_B[blocks_N]

    def hits(
        self, num_rows_R: Integers, blocks_N: Integers, planned: Mapping[str, tuple[Integers, Integers]]
    ) -> PrefixHits:
        """Find the slots of the rows that requests start on, see `cached_blocks`."""
        slots_NO = blocks_N[:, None] * self.block_size + self._offsets_O
        if _outside(blocks_N, self.num_blocks) is not None:  # also a missing block, −1
            is_known_N = blocks_N != -1
            self.check_blocks(blocks_N[is_known_N])
            slots_NO[~is_known_N] = -1
        num_begun_R = num_rows_R % self.block_size
        if not num_begun_R.any():
            return PrefixHits(num_rows_R, slots_NO.reshape(-1), planned)
        is_begun_R = num_begun_R > 0
        is_row_NO = np.ones(slots_NO.shape, np.bool_)
        last_R = (-(-num_rows_R // self.block_size)).cumsum() - 1
        is_row_NO[last_R[is_begun_R]] = self._offsets_O < num_begun_R[is_begun_R, None]
        return PrefixHits(num_rows_R, slots_NO[is_row_NO], planned)

    def check_slots(self, slots_K: Integers) -> None:
        """Raise unless all slots lie in the pool."""
        if (slot := _outside(slots_K, self.num_blocks * self.block_size)) is not None:
            raise StateError(messages.SLOT_OUTSIDE, slots=self.num_blocks * self.block_size, slot=slot)

    def note_lacking(self, name: str, num_rows: int, why: str) -> None:
        """Count rows of hits that their consumers do not get of an output, and say so once for each output."""
        if not self.lacking[name]:
            logger.warning("prefix cache: a hit lacks rows of %s: %s; from now on only counted", name, why)
        self.lacking[name] += num_rows

    def check_blocks(self, block_ids: Iterable[int] | Integers) -> Integers:
        """Return the block ids as int64 if all lie in the pool."""
        blocks_N = block_ids if isinstance(block_ids, np.ndarray) else np.array(list(block_ids), np.int64)
        if (block := _outside(blocks_N, self.num_blocks)) is not None:
            raise StateError(messages.BLOCK_OUTSIDE, blocks=self.num_blocks, block=block)
        return blocks_N

    def merge(self, name: str, rows_KF: torch.Tensor, batch: BatchRows, hits: PrefixHits) -> dict[str, torch.Tensor]:
        """Put the cached rows of each hit before this step's rows; other requests get a copy of theirs.

        All requests share one buffer, filled by one gather and one scatter; each gets a view of its own part.
        """
        store, counts_R = self.stores[name], batch.counts_R
        num_cached_R, cached_S, zero_S = self._readable(name, batch, hits)
        num_rows_R, raw_K = num_cached_R + counts_R, store.raw(rows_KF)
        num_rows = int(num_rows_R.sum())
        memory = self.buffers.take(num_rows * store.rows_S.itemsize)
        out_S = memory.view(store.rows_S.dtype)
        if len(cached_S):
            places_K = np.arange(num_rows - len(cached_S)) + num_cached_R.cumsum().repeat(counts_R)
            is_cached_S = np.ones(num_rows, np.bool_)
            is_cached_S[places_K] = False
            slots_S = np.zeros(num_rows, np.int64)  # this step's rows gather slot 0 and are then overwritten
            slots_S[is_cached_S] = cached_S
            # The slots were checked; "raise" would check again and gather into a buffer first.
            store.rows_S.take(slots_S, out=out_S, mode="clip")
            if zero_S is not None:
                out_S[np.flatnonzero(is_cached_S)[zero_S]] = np.zeros((), out_S.dtype)
            out_S[places_K] = raw_K[batch.rows_K]
            self.counters["rows_read"] += len(cached_S)
        else:
            raw_K.take(batch.rows_K, out=out_S, mode="clip")
        return store.parts(memory, batch.req_ids, num_rows_R)

    def gather(
        self, name: str, slots_S: Integers, req_ids: list[str], num_rows_R: Integers, *, may_lack: bool
    ) -> tuple[dict[str, torch.Tensor], Integers]:
        """Give each request its number of rows at these slots, in memory that all share. An absent row is zero.

        Args:
            may_lack: rows may be absent.

        Returns:
            The rows by request, and the places in `slots_S` of absent ones.
        """
        store = self.stores[name]
        memory = self.buffers.take(len(slots_S) * store.rows_S.itemsize)
        out_S = memory.view(store.rows_S.dtype)
        store.rows_S.take(slots_S, out=out_S, mode="clip")
        self.counters["rows_read"] += len(slots_S)
        absent_A = np.flatnonzero(store.version_S[slots_S] == 0) if may_lack else np.empty(0, np.int64)
        if len(absent_A):
            out_S[absent_A] = np.zeros((), out_S.dtype)
            self.counters["absent_rows"] += len(absent_A)
        return store.parts(memory, req_ids, num_rows_R), absent_A

    def _readable(self, name: str, batch: BatchRows, hits: PrefixHits) -> tuple[Integers, Integers, Mask | None]:
        """Return the hits' row counts and slots without the hits that are missed, and the rows to zero if any."""
        is_absent_S = self.stores[name].absent(hits.slots_S)
        if not is_absent_S.any() and not any(len(blocks_N) for blocks_N, _ in hits.planned.values()):
            return hits.num_rows_R, hits.slots_S, None
        num_rows_R, is_kept_S = hits.num_rows_R.copy(), np.ones(len(hits.slots_S), np.bool_)
        stop = 0
        for index, req_id in enumerate(batch.req_ids):
            part = slice(stop, stop := stop + int(num_rows_R[index]))
            freed = self._freed_since(hits, req_id, hits.slots_S[part])
            if len(freed):
                is_absent_S[part] = True
            num_absent = int(is_absent_S[part].sum())
            if not num_absent:
                continue
            why = self._why_absent(hits.slots_S[part], freed, num_absent)
            where = f"prefix cache(request={req_id!r}, key={name!r})"
            self.counters["absent_rows"] += num_absent
            if self._absent == "raise":
                raise StateError(messages.ROW_ABSENT, where=where, why=why)
            self.note_lacking(name, num_absent, f"{why}; answered as absent={self._absent!r} says")
            if self._absent == "miss":
                self.counters["misses"] += 1
                num_rows_R[index], is_kept_S[part] = 0, False
        return num_rows_R, hits.slots_S[is_kept_S], is_absent_S[is_kept_S]

    def _freed_since(self, hits: PrefixHits, req_id: str, slots_S: Integers) -> Integers:
        """Return the blocks of these slots that were released after the hit was planned on them."""
        if req_id not in hits.planned:
            return np.empty(0, np.int64)
        blocks_N, times_N = hits.planned[req_id]
        freed_N = blocks_N[self._times_released_B[blocks_N] != times_N]
        return np.intersect1d(freed_N, slots_S // self.block_size) if len(freed_N) else freed_N

    def _why_absent(self, slots_S: Integers, freed: Integers, num_absent: int) -> str:
        if len(freed):
            return f"block {freed[0]} was freed after the hit was planned"
        if num_unknown := int((slots_S < 0).sum()):
            num_blocks, num_known = (-(-rows // self.block_size) for rows in (len(slots_S), len(slots_S) - num_unknown))
            return (
                f"its row of input_batch.block_table must have {num_blocks} blocks for its {len(slots_S)} computed "
                f"tokens, got {num_known} (read the batch before the request leaves it)"
            )
        return f"{num_absent} of {len(slots_S)} cached rows were never written for what their slots now hold"


def _outside(numbers: Integers, stop: int) -> int | None:
    """Return a number that is not in [0, stop), if there is one."""
    # One pass for both ends: a negative number is a very large one without its sign.
    if int(numbers.view(np.uint64).max(initial=0)) < stop:
        return None
    return int(numbers[(numbers < 0) | (numbers >= stop)][0])
