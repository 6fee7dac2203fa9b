"""Read the engine's batch: which request owns which rows, blocks and slots; split what is not cached over its requests.

The batch is duck-typed as vLLM V1's `InputBatch`: `req_id_to_index`, `num_computed_tokens_cpu` and
`block_table[0].block_table.cpu`, a tensor of block ids (requests, blocks).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from omnireuse import messages
from omnireuse.core.prefix_cache.rows import Integers, Mask
from omnireuse.errors import ConfigError, StateError, UnsupportedModelError, WrongTypeError

__all__ = ["BatchRows", "blocks_of", "cached_blocks", "has_token_rows", "rows_of", "slots_at", "split_over"]


@dataclass(frozen=True)
class BatchRows:
    """The rows of each request in this step's outputs: [start, start + count), in the batch's order.

    Attributes:
        req_ids: the requests of the batch; one that is not scheduled has no rows.
        indices_R: their indices in the batch.
        starts_R, counts_R: first row and number of rows.
    """

    req_ids: list[str]
    indices_R: Integers
    starts_R: Integers
    counts_R: Integers

    @property
    def stop(self) -> int:
        """One past the last row."""
        return int((self.starts_R + self.counts_R).max(initial=0))

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return int(self.counts_R.sum())

    @functools.cached_property
    def rows_K(self) -> Integers:
        """The rows of this step in the order of the requests."""
        stops_R = self.counts_R.cumsum()
        rows_K: Integers = (self.starts_R + self.counts_R - stops_R).repeat(self.counts_R)
        return rows_K + np.arange(len(rows_K))

    def __iter__(self) -> Iterator[tuple[str, int, slice]]:
        """Give id, index and rows of each request."""
        stops_R = self.starts_R + self.counts_R
        return zip(
            self.req_ids, self.indices_R.tolist(), map(slice, self.starts_R.tolist(), stops_R.tolist()), strict=True
        )


def rows_of(
    query_start_loc: torch.Tensor | Sequence[int], input_batch: Any, num_scheduled_tokens: Mapping[str, int]
) -> BatchRows:
    """Find the rows of every request in the batch."""
    if not isinstance(num_scheduled_tokens, Mapping):
        raise WrongTypeError(messages.TOKENS_NOT_MAPPED, kind=type(num_scheduled_tokens).__name__)
    table = getattr(input_batch, "block_table", None)
    groups = getattr(table, "block_tables", table)
    if isinstance(groups, Sized) and len(groups) > 1:
        raise UnsupportedModelError(messages.SEVERAL_KV_GROUPS, groups=len(groups))
    req_ids = list(input_batch.req_id_to_index)
    indices_R = np.array(list(input_batch.req_id_to_index.values()), np.int64)
    counts_R = np.array([num_scheduled_tokens.get(req_id, 0) for req_id in req_ids], np.int64)
    starts = np.asarray(query_start_loc.cpu() if isinstance(query_start_loc, torch.Tensor) else query_start_loc)
    if int(indices_R.max(initial=-1)) >= len(starts):
        for index, req_id, count in zip(indices_R.tolist(), req_ids, counts_R.tolist(), strict=True):
            if count and index >= len(starts):
                raise ConfigError(messages.TOO_FEW_STARTS, entries=len(starts), request=req_id, index=index)
    starts_R = starts.take(indices_R, mode="clip") if len(starts) else indices_R
    return BatchRows(req_ids, indices_R, starts_R.astype(np.int64, copy=False) * (counts_R > 0), counts_R)


def cached_blocks(input_batch: Any, batch: BatchRows, is_hit_R: Mask, block_size: int) -> tuple[Integers, Integers]:
    """Return how many cached rows each request starts on, 0 without a hit, and the blocks of all these rows in a row.

    The last block of a request may be one that it has only begun. A block is −1 if the block table does not have it.
    """
    num_rows_R = np.asarray(input_batch.num_computed_tokens_cpu, np.int64)[batch.indices_R] * is_hit_R
    if (least := int(num_rows_R.min(initial=0))) < 0:
        raise StateError(f"input_batch.num_computed_tokens_cpu: must be ≥ 0, got {least}")
    num_blocks_R = -(-num_rows_R // block_size)
    most = int(num_blocks_R.max(initial=0))
    if not most:
        return num_rows_R, np.empty(0, np.int64)
    table = input_batch.block_table[0]
    known_RN = torch.as_tensor(table.block_table.cpu).numpy()[batch.indices_R, :most]
    columns_N = np.arange(most)
    filled = getattr(table, "num_blocks_per_row", None)
    if filled is not None or known_RN.shape[1] < most:
        blocks_RN = np.full((len(num_rows_R), most), -1, np.int64)
        blocks_RN[:, : known_RN.shape[1]] = known_RN
        if filled is not None:
            blocks_RN[columns_N >= np.asarray(filled)[batch.indices_R, None]] = -1
        known_RN = blocks_RN
    return num_rows_R, known_RN[columns_N < num_blocks_R[:, None]].astype(np.int64, copy=False)


def blocks_of(input_batch: object, index: int) -> Integers:
    """Return the ids of the blocks of one request; none for a batch without a block table."""
    table = getattr(input_batch, "block_table", None)
    if table is None:
        return np.empty(0, np.int64)
    row: Integers = torch.as_tensor(table[0].block_table.cpu).numpy()[index]
    filled = getattr(table[0], "num_blocks_per_row", None)
    return row if filled is None else row[: int(filled[index])]


def slots_at(blocks_N: Integers, positions_K: Integers, block_size: int) -> Integers:
    """Map token positions through a request's blocks to slots, int64; −1 if it has no such block."""
    columns_K = positions_K // block_size
    is_known_K = columns_K < len(blocks_N)
    slots_K = np.full(len(positions_K), -1, np.int64)
    slots_K[is_known_K] = blocks_N[columns_K[is_known_K]].astype(np.int64) * block_size
    slots_K[is_known_K] += positions_K[is_known_K] % block_size
    return slots_K


def split_over(value: object, batch: BatchRows) -> dict[str, object]:
    """Give each request its part of an uncached output, on the CPU.

    Tensors with one row for each token are sliced, others cloned whole; lists and tuples go whole with their tensors
    cloned; mappings are split entry by entry; anything else is shared.
    """
    # Once for all requests: a copy off the device per request would wait for the device each time.
    host = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), value)
    return {req_id: _part(host, rows, batch.num_tokens) for req_id, _, rows in batch}


def has_token_rows(value: object, num_tokens: int) -> bool:
    """Tell whether `split_over` cuts something in it: a tensor with one row for each token, here or in a mapping."""
    if isinstance(value, Mapping):
        return any(has_token_rows(item, num_tokens) for item in value.values())
    return isinstance(value, torch.Tensor) and value.ndim >= 1 and value.shape[0] == num_tokens


def _part(value: object, rows: slice, num_tokens: int) -> object:
    if isinstance(value, torch.Tensor) and has_token_rows(value, num_tokens):
        return value[rows].cpu().clone()
    if isinstance(value, Mapping):
        return {key: _part(item, rows, num_tokens) for key, item in value.items()}
    return tree_map_only(torch.Tensor, lambda tensor: tensor.cpu().clone(), value)
