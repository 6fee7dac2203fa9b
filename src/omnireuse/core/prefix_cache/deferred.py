"""Outputs kept on the device until their request finishes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omnireuse import messages
from omnireuse.core.prefix_cache import writer
from omnireuse.core.prefix_cache.batch import blocks_of, slots_at
from omnireuse.core.prefix_cache.keys import CachedKeys, key_name
from omnireuse.core.prefix_cache.pool import RowPool
from omnireuse.core.prefix_cache.rows import Integers
from omnireuse.errors import StateError

__all__ = ["DeferredOutputs"]

logger = logging.getLogger("omnireuse.core.prefix_cache")


@dataclass(frozen=True)
class Chunk:
    """Rows of one request, as one step produced them.

    Attributes:
        positions_K: the tokens that the rows belong to.
        rows: on the device.
        slots_K: if the block table put the tokens then; −1 if it had no block.
        step: the step that computed them.
        num_releases: that of the pool at that time.
    """

    positions_K: Integers
    rows: torch.Tensor
    slots_K: Integers
    step: int
    num_releases: int


class DeferredOutputs:
    """What is staged, by request and key, in the order of staging."""

    def __init__(self, pool: RowPool, keys: CachedKeys, queue: writer.WriteQueue) -> None:
        self._pool, self._keys, self._queue = pool, keys, queue
        self._by_request: dict[str, dict[str, list[Chunk]]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes held on the device."""
        return sum(c.rows.nbytes for keys in self._by_request.values() for chunks in keys.values() for c in chunks)

    def stage(self, req_id: str, rows: slice, start: int, outputs: Mapping[str, object], blocks_N: Integers) -> None:
        """Keep a copy of one request's rows of these outputs.

        Args:
            start: the token that the first row belongs to.
            outputs: values by key, none of them None.
            blocks_N: the request's blocks, as far as they are known.
        """
        staged = self._by_request.get(req_id, {})
        rows_by_key = {key: self._keys.rows_of_request(key, value, rows) for key, value in outputs.items()}
        for key, new in rows_by_key.items():
            if key in staged and _kind(staged[key][0].rows) != _kind(new):
                held = _kind(staged[key][0].rows)
                raise StateError(messages.KIND_OF_ROWS, key=key, held=held, got=_kind(new), request=req_id)
        positions_K = np.arange(start, start + rows.stop - rows.start)
        slots_K = slots_at(blocks_N, positions_K, self._pool.block_size)
        self._pool.check_blocks(slots_K[slots_K >= 0] // self._pool.block_size)
        for key, new in rows_by_key.items():
            chunk = Chunk(positions_K, new.clone(), slots_K, self._pool.step, self._pool.num_releases)
            self._by_request.setdefault(req_id, {}).setdefault(key, []).append(chunk)

    def commit(self, finished_req_ids: Iterable[str], input_batch: Any) -> None:
        """Write staged values of these requests at their slots, drop and count the rest."""
        taken = {req_id: self._by_request.pop(req_id, {}) for req_id in dict.fromkeys(finished_req_ids)}
        for req_id, chunks_by_key in taken.items():
            index = input_batch.req_id_to_index.get(req_id)
            blocks_N = None if index is None or not chunks_by_key else blocks_of(input_batch, index)
            for key, chunks in chunks_by_key.items():
                self._commit_key(req_id, key, chunks, blocks_N)

    def _commit_key(self, req_id: str, key: str, chunks: list[Chunk], blocks_N: Integers | None) -> None:
        """Write each token once, with the rows staged last: a preempted request computes tokens again.

        Args:
            blocks_N: the request's blocks now; None if it has left the batch: its rows then keep their slots.
        """
        positions_K = np.concatenate([chunk.positions_K for chunk in chunks])
        tokens_T, first_T = np.unique(positions_K[::-1], return_index=True)
        last_T = len(positions_K) - 1 - first_T
        if blocks_N is None:
            slots_T = np.concatenate([chunk.slots_K for chunk in chunks])[last_T]
        else:
            slots_T = slots_at(blocks_N, tokens_T, self._pool.block_size)
        is_known_T = slots_T >= 0
        if not self._keys.may_hold(key, chunks[0].rows):
            self._drop(len(tokens_T), f"rows of {key!r} differ from those cached since", req_id)
            return
        if not is_known_T.all():
            self._drop(int((~is_known_T).sum()), f"the slots of these rows of {key!r} are not known", req_id)
        if not is_known_T.any():
            return
        slots_T, last_T = slots_T[is_known_T], last_T[is_known_T]
        self._pool.check_blocks(slots_T // self._pool.block_size)
        rows = torch.cat([chunk.rows for chunk in chunks])
        rows = rows.index_select(0, torch.from_numpy(last_T).to(rows.device))
        counts = [len(chunk.positions_K) for chunk in chunks]
        steps_T = np.repeat([chunk.step for chunk in chunks], counts)[last_T]
        releases_T = np.repeat([chunk.num_releases for chunk in chunks], counts)[last_T]
        if key not in self._keys:
            self._keys.add(key, tuple(rows.shape[1:]), rows.dtype)
        (rows_TF,), ready = writer.start_host_copies([self._keys.rows(key, rows, len(rows))])
        self._queue.write(lambda: self._pool.write_late(key_name(key), slots_T, rows_TF, steps_T, releases_T), ready)

    def discard(self, req_id: str) -> None:
        """Drop the chunks of a request; none staged is fine."""
        self._by_request.pop(req_id, None)

    def _drop(self, num_rows: int, why: str, req_id: str) -> None:
        self._pool.counters["deferred_rows_dropped"] += num_rows
        logger.info("prefix cache: %d deferred rows of request %r dropped: %s", num_rows, req_id, why)


def _kind(rows: torch.Tensor) -> str:
    return f"{tuple(rows.shape[1:])} {rows.dtype}"
