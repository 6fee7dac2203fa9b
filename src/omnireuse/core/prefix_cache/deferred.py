"""Outputs kept on the device until their request finishes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omnireuse.core.prefix_cache import writer
from omnireuse.core.prefix_cache.batch import NO_BLOCKS, Blocks, Span, blocks_of, slots_at
from omnireuse.core.prefix_cache.keys import CachedKeys, key_name
from omnireuse.core.prefix_cache.pool import RowPool
from omnireuse.errors import StateError

__all__ = ["DeferredOutputs"]

logger = logging.getLogger("omnireuse.core.prefix_cache")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows of one request from token `start` on, as one step produced them.

    Attributes:
        slots_K: where the block table put them then, int64; −1 where it had no block.
        step: the step that computed them.
        num_releases: that of the pool at that time.
    """

    start: int
    rows: torch.Tensor
    slots_K: npt.NDArray[np.int64]
    step: int
    num_releases: int


@dataclass(frozen=True, kw_only=True)
class LateRows:
    """The rows of one request and key, each token once, with slot, step and `num_releases` of each row."""

    rows: torch.Tensor
    slots_K: torch.Tensor
    steps_K: torch.Tensor
    releases_K: torch.Tensor

    def __len__(self) -> int:
        return len(self.slots_K)

    def known(self) -> LateRows:
        """Those whose slot is known."""
        is_known_K = self.slots_K >= 0
        if bool(is_known_K.all()):
            return self
        known_N = is_known_K.nonzero().flatten()
        return LateRows(
            rows=self.rows.index_select(0, known_N.to(self.rows.device)),
            slots_K=self.slots_K[known_N],
            steps_K=self.steps_K[known_N],
            releases_K=self.releases_K[known_N],
        )


def in_token_order(chunks: list[Chunk], blocks_N: Blocks | None, block_size: int) -> LateRows:
    """Join the chunks of a request in token order, each token once.

    A token staged twice (its request was preempted and computed again) keeps the rows staged last.

    Args:
        blocks_N: the request's blocks now; None where nobody knows them any more: its rows then keep the slots that
            they had when they were staged.
    """
    positions = np.concatenate([np.arange(c.start, c.start + c.rows.shape[0]) for c in chunks])
    # The first of a reversed array is the last that was staged.
    unique_K, first_K = np.unique(positions[::-1], return_index=True)
    last_K = len(positions) - 1 - first_K
    rows = chunks[0].rows if len(chunks) == 1 else torch.cat([c.rows for c in chunks])
    if len(last_K) != len(positions) or not np.array_equal(last_K, np.arange(len(positions))):
        rows = rows.index_select(0, torch.from_numpy(last_K).to(rows.device))
    if blocks_N is None:
        slots_K = np.concatenate([c.slots_K for c in chunks])[last_K]
    else:
        slots_K = slots_at(blocks_N, unique_K, block_size)
    return LateRows(
        rows=rows,
        slots_K=torch.from_numpy(slots_K),
        steps_K=torch.from_numpy(_per_row(chunks, "step")[last_K]).to(torch.int32),
        releases_K=torch.from_numpy(_per_row(chunks, "num_releases")[last_K]),
    )


def _per_row(chunks: list[Chunk], name: str) -> npt.NDArray[np.int64]:
    return np.concatenate([np.full(chunk.rows.shape[0], getattr(chunk, name), np.int64) for chunk in chunks])


def _kind(rows: torch.Tensor) -> str:
    return f"{tuple(rows.shape[1:])} {rows.dtype}"


class DeferredOutputs:
    """What is staged, by request and key, in the order of staging.

    Args:
        pool, keys, queue: those of the cache.
    """

    def __init__(self, pool: RowPool, keys: CachedKeys, queue: writer.WriteQueue) -> None:
        self._pool, self._keys, self._queue = pool, keys, queue
        self._by_request: dict[str, dict[str, list[Chunk]]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes held on the device."""
        return sum(c.rows.nbytes for keys in self._by_request.values() for chunks in keys.values() for c in chunks)

    def stage(self, span: Span, start: int, outputs: Mapping[str, object], blocks_N: Blocks | None) -> None:
        """Keep a copy of one request's rows of these outputs.

        Args:
            start: the token that the first row belongs to.
            outputs: values by key, none of them None.
            blocks_N: the request's blocks, as far as they are known.

        Raises:
            StateError: no tensor with a row for each token; rows of another shape or dtype than before; a block outside
                the pool. Nothing is staged.
        """
        staged = self._by_request.get(span.req_id, {})
        rows_by_key = {key: self._keys.rows_of_request(key, value, span) for key, value in outputs.items()}
        for key, rows in rows_by_key.items():
            if key in staged and _kind(staged[key][0].rows) != _kind(rows):
                raise StateError(
                    f"multimodal_outputs[{key!r}]: rows of a deferred key must stay {_kind(staged[key][0].rows)}, got "
                    f"{_kind(rows)} for request {span.req_id!r}"
                )
        positions_K = np.arange(start, start + span.num_tokens)
        slots_K = slots_at(NO_BLOCKS if blocks_N is None else blocks_N, positions_K, self._pool.block_size)
        self._pool.check_blocks(torch.from_numpy(slots_K[slots_K >= 0] // self._pool.block_size))
        for key, rows in rows_by_key.items():
            chunk = Chunk(
                start=start,
                rows=rows.clone(),
                slots_K=slots_K,
                step=self._pool.step,
                num_releases=self._pool.num_releases,
            )
            self._by_request.setdefault(span.req_id, {}).setdefault(key, []).append(chunk)

    def commit(self, finished_req_ids: Iterable[str], input_batch: Any) -> None:
        """Write what is staged for these requests where it belongs, drop and count the rest."""
        taken = {req_id: self._by_request.pop(req_id, {}) for req_id in dict.fromkeys(finished_req_ids)}
        for req_id, chunks_by_key in taken.items():
            index = input_batch.req_id_to_index.get(req_id) if chunks_by_key else None
            blocks_N = None if index is None else blocks_of(input_batch, index)
            for key, chunks in chunks_by_key.items():
                late = in_token_order(chunks, blocks_N, self._pool.block_size)
                known = late.known()
                if not self._keys.may_hold(key, late.rows):
                    self._drop(len(late), f"rows of {key!r} differ from those cached since", req_id)
                elif len(known) < len(late):
                    self._drop(len(late) - len(known), f"the slots of these rows of {key!r} are not known", req_id)
                    self._write(key, known)
                else:
                    self._write(key, late)

    def discard(self, req_id: str) -> None:
        """Drop the chunks of a request; none staged is fine."""
        self._by_request.pop(req_id, None)

    def discard_key(self, key: str) -> None:
        """Drop the chunks of one key for all requests."""
        for req_id, chunks in list(self._by_request.items()):
            chunks.pop(key, None)
            if not chunks:
                del self._by_request[req_id]

    def _drop(self, num_rows: int, why: str, req_id: str) -> None:
        self._pool.counters["deferred_rows_dropped"] += num_rows
        logger.info("prefix cache: %d deferred rows of request %r dropped: %s", num_rows, req_id, why)

    def _write(self, key: str, late: LateRows) -> None:
        if not len(late):
            return
        self._pool.check_blocks(late.slots_K // self._pool.block_size)
        if key not in self._keys:
            self._keys.add(key, tuple(late.rows.shape[1:]), late.rows.dtype)
        name = key_name(key)
        (rows_KF,), ready = writer.start_host_copies([self._keys.rows(key, late.rows, len(late))])
        self._queue.write(
            lambda: self._pool.land_late(name, late.slots_K, rows_KF, late.steps_K, late.releases_K), ready
        )
