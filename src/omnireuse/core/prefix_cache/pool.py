"""The rows of all keys together: what may be read, what a write makes stale, what is handed back.

A row belongs to (slot, key) and remembers the step that wrote it. From this follows what a hit may read: a row never
written is absent; and when hidden states land on a slot, rows of other keys there that earlier steps wrote are absent
from then on, because the slot now holds other content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from omnireuse.core.prefix_cache.batch import Blocks, Span
from omnireuse.core.prefix_cache.rows import RawRows, RowStore
from omnireuse.errors import StateError

__all__ = ["HIDDEN", "RowPool"]

HIDDEN = "hidden_states"


class RowPool:
    """Row stores by name over the slots of one KV cache.

    Args:
        num_blocks, block_size: shape of the engine's KV cache.
        absent: the policy for rows that are not there, see `PrefixCacheOptions`.

    Attributes:
        stores: the row store of each key.
        step: number of the current step, from 1.
        num_releases: calls of `release` so far.
        counters: rows and events by name.
    """

    def __init__(self, num_blocks: int, block_size: int, absent: str) -> None:
        self.num_blocks, self.block_size, self._absent = num_blocks, block_size, absent
        self.stores: dict[str, RowStore] = {}
        self.step = 1
        self.num_releases = 0
        self.counters: Counter[str] = Counter()
        self._generation_B = torch.zeros(num_blocks, dtype=torch.int32)
        self._released_B = torch.zeros(num_blocks, dtype=torch.int64)  # the number of its last release, 0 for none

    def add(self, name: str, feature_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Make room for a key; it costs address space until rows are written."""
        self.stores[name] = RowStore(self.num_blocks, self.block_size, feature_shape, dtype)

    def land(self, slots_K: torch.Tensor, rows_by_name: Mapping[str, torch.Tensor], step: int) -> None:
        """Write what one step computed for its tokens, raw rows; padding slots (−1) are left out.

        Raises:
            StateError: a slot outside the pool; nothing is written.
        """
        slots_K = slots_K.to(torch.long)
        if slots_K.numel() and int(slots_K.min()) == -1:
            is_token_K = slots_K != -1
            self.counters["padding_rows"] += slots_K.numel() - int(is_token_K.sum())
            slots_K = slots_K[is_token_K]
            rows_by_name = {name: rows[is_token_K] for name, rows in rows_by_name.items()}
        if slots_K.numel() == 0:
            return
        lowest, highest = (int(bound) for bound in slots_K.aminmax())
        if lowest < 0 or highest >= self.num_blocks * self.block_size:
            raise StateError(
                f"prefix cache: slot_mapping must lie in [0, {self.num_blocks * self.block_size}) or be −1 for "
                f"padding, got {lowest if lowest < 0 else highest}; num_blocks, block_size must be the KV cache's own"
            )
        for name, rows in rows_by_name.items():
            self.stores[name].write(slots_K, rows, step)
            self.counters["rows_written"] += rows.shape[0]
        if HIDDEN in rows_by_name:
            for name, store in self.stores.items():
                if name not in rows_by_name:
                    store.forget_older(slots_K, step)

    def land_late(
        self,
        name: str,
        slots_K: torch.Tensor,
        rows_KF: torch.Tensor,
        steps_K: torch.Tensor,
        releases_K: torch.Tensor,
    ) -> None:
        """Write rows that earlier steps computed, except where the slot has since been given to other content.

        Args:
            steps_K: the step that computed each row.
            releases_K: `num_releases` at that time.
        """
        is_current_K = self._released_B[slots_K // self.block_size] <= releases_K
        for store in (self.stores[HIDDEN], self.stores[name]):
            is_current_K &= store.version_S[slots_K] <= steps_K
        num_late = slots_K.numel() - int(is_current_K.sum())
        if num_late:
            self.counters["stale_rows_dropped"] += num_late
            slots_K, rows_KF, steps_K = slots_K[is_current_K], rows_KF[is_current_K], steps_K[is_current_K]
        self.stores[name].write(slots_K, rows_KF, steps_K)
        self.counters["rows_written"] += slots_K.numel()

    def release(self, blocks_N: torch.Tensor) -> None:
        """Make these blocks absent for every key, hand their memory back and fail hits planned on them."""
        for store in self.stores.values():
            store.release(blocks_N)
        self._generation_B[blocks_N] += 1
        self.num_releases += 1
        self._released_B[blocks_N] = self.num_releases

    def generations(self, blocks_N: torch.Tensor) -> dict[int, int]:
        """Return how often each block has been released; a hit planned on it keeps this."""
        if not blocks_N.numel():
            return {}
        return dict(zip(blocks_N.tolist(), self._generation_B[blocks_N].tolist(), strict=True))

    def check_blocks(self, blocks_N: torch.Tensor) -> torch.Tensor:
        """Return the block ids if all lie in the pool.

        Raises:
            StateError: one does not.
        """
        if blocks_N.numel():
            lowest, highest = (int(bound) for bound in blocks_N.aminmax())
            if lowest < 0 or highest >= self.num_blocks:
                raise StateError(
                    f"prefix cache: a block id must lie in [0, {self.num_blocks}), got "
                    f"{lowest if lowest < 0 else highest}; num_blocks must be the KV cache's own"
                )
        return blocks_N

    def merge(
        self,
        name: str,
        host_KF: torch.Tensor,
        spans: list[Span],
        blocks_by_hit: Mapping[str, Blocks],
        planned_by_hit: Mapping[str, Mapping[int, int]],
    ) -> dict[str, torch.Tensor]:
        """Put the cached blocks of each hit before this step's rows; other requests get a copy of theirs.

        Args:
            planned_by_hit: block generations when each hit was planned; a block not in it is read as it is now.

        Raises:
            StateError: a row is absent and the policy says to raise.
        """
        # In numpy, and what can be asked for all hits is asked once: with many requests, calls cost more than rows.
        store, host = self.stores[name], host_KF.numpy()
        absent_by_hit = dict(zip(blocks_by_hit, store.num_absent(list(blocks_by_hit.values())), strict=True))
        merged = {}
        for span in spans:
            new_KF = host[span.start : span.stop]
            blocks_N = blocks_by_hit.get(span.req_id)
            out_KF = None
            if blocks_N is not None:
                planned = planned_by_hit[span.req_id]
                out_KF = self._gather(name, blocks_N, absent_by_hit[span.req_id], planned, span)
            if out_KF is None:
                out_KF = new_KF.copy()  # the engine writes its next step over these
            else:
                out_KF[len(out_KF) - span.num_tokens :] = new_KF
            merged[span.req_id] = store.from_raw(out_KF)
        return merged

    def _gather(
        self, name: str, blocks_N: Blocks, num_absent: int, planned: Mapping[int, int], span: Span
    ) -> RawRows | None:
        """Gather blocks into a fresh array with room for the span after them; None if absent and to be missed."""
        store = self.stores[name]
        now = self.generations(torch.from_numpy(blocks_N)) if planned else {}
        reused = [block for block, generation in now.items() if planned.get(block, generation) != generation]
        num_cached = len(blocks_N) * self.block_size
        if reused:
            num_absent = num_cached
        if num_absent:
            self.counters["absent_rows"] += num_absent
            if self._absent == "raise":
                why = (
                    f"block {reused[0]} was freed after the hit was planned"
                    if reused
                    else f"{num_absent} of {num_cached} cached rows were never written for what their slots now hold"
                )
                raise StateError(
                    f"prefix cache(request={span.req_id!r}, key={name!r}): every cached row must be present, {why}; "
                    "write the key for every token the engine may hit, or choose another PrefixCacheOptions(absent=…)"
                )
            if self._absent == "miss":
                self.counters["misses"] += 1
                return None
        out_KF = store.new_raw(num_cached + span.num_tokens)
        cached_KF = out_KF[:num_cached]
        if reused:
            cached_KF[:] = 0
        else:
            store.read_into(blocks_N, cached_KF)
            if num_absent:
                store.zero_absent(blocks_N, cached_KF)
        self.counters["rows_read"] += num_cached
        return out_KF
