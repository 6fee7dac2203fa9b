"""Read the engine's batch: which request owns which rows, blocks and slots.

The batch is duck-typed as vLLM V1's `InputBatch`: `req_id_to_index`, `num_computed_tokens_cpu` and
`block_table[0].block_table.cpu`, a tensor of block ids (requests, blocks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omnireuse.core.prefix_cache.rows import Integers
from omnireuse.errors import ConfigError, StateError, UnsupportedModelError, WrongTypeError

__all__ = ["BatchRows", "blocks_of", "cached_blocks", "rows_of", "slots_at"]


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

    def __iter__(self) -> Iterator[tuple[str, int, slice]]:
        """Give id, index and rows of each request."""
        stops_R = self.starts_R + self.counts_R
        return zip(
            self.req_ids, self.indices_R.tolist(), map(slice, self.starts_R.tolist(), stops_R.tolist()), strict=True
        )


def rows_of(
    query_start_loc: torch.Tensor | Sequence[int], input_batch: Any, num_scheduled_tokens: Mapping[str, int]
) -> BatchRows:
    """Find the rows of every request in the batch.

    Raises:
        WrongTypeError: `num_scheduled_tokens` is no mapping.
        ConfigError: `query_start_loc` has no entry for a scheduled request.
        UnsupportedModelError: the batch has several KV cache groups.
    """
    if not isinstance(num_scheduled_tokens, Mapping):
        raise WrongTypeError(
            f"num_scheduled_tokens must map request ids to counts, got {type(num_scheduled_tokens).__name__}"
        )
    table = getattr(input_batch, "block_table", None)
    groups = getattr(table, "block_tables", table)
    if isinstance(groups, (list, tuple)) and len(groups) > 1:
        raise UnsupportedModelError(
            f"input_batch.block_table: must have one KV cache group, got {len(groups)}: slots of several groups do not "
            "name one row; turn the prefix cache off for hybrid models"
        )
    req_ids = list(input_batch.req_id_to_index)
    indices_R = np.array(list(input_batch.req_id_to_index.values()), np.int64)
    counts_R = np.array([num_scheduled_tokens.get(req_id, 0) for req_id in req_ids], np.int64)
    starts = np.asarray(query_start_loc.cpu() if isinstance(query_start_loc, torch.Tensor) else query_start_loc)
    is_missing_R = (counts_R > 0) & (indices_R >= len(starts))
    if is_missing_R.any():
        request = int(is_missing_R.argmax())
        raise ConfigError(
            f"query_start_loc: must have an entry for every request, got {len(starts)} entries and request "
            f"{req_ids[request]!r} at index {indices_R[request]}"
        )
    starts_R = np.zeros(len(req_ids), np.int64)
    starts_R[counts_R > 0] = starts[indices_R[counts_R > 0]]
    return BatchRows(req_ids, indices_R, starts_R, counts_R)


def cached_blocks(input_batch: Any, indices_H: Integers, block_size: int) -> tuple[Integers, Integers]:
    """Return how many full blocks each of these requests starts on, and the ids of all these blocks in a row.

    Raises:
        StateError: the block table has fewer.
    """
    num_blocks_H = np.asarray(input_batch.num_computed_tokens_cpu, np.int64)[indices_H] // block_size
    most = int(num_blocks_H.max(initial=0))
    if not most:
        return num_blocks_H, np.empty(0, np.int64)
    table = input_batch.block_table[0]
    blocks_RN = torch.as_tensor(table.block_table.cpu).numpy()
    filled = getattr(table, "num_blocks_per_row", None)
    limit_H = np.full(len(indices_H), blocks_RN.shape[1]) if filled is None else np.asarray(filled)[indices_H]
    if (num_blocks_H > limit_H).any():
        hit = int((num_blocks_H > limit_H).argmax())
        raise StateError(
            f"input_batch.block_table: request at index {indices_H[hit]} must have {num_blocks_H[hit]} blocks for its "
            f"tokens, got {limit_H[hit]}; read it before the request leaves the batch"
        )
    is_cached_HN = np.arange(most) < num_blocks_H[:, None]
    return num_blocks_H, blocks_RN[indices_H, :most][is_cached_HN].astype(np.int64)


def blocks_of(input_batch: Any, index: int) -> Integers:
    """Return the ids of the blocks of one request; none for a batch without a block table."""
    table = getattr(input_batch, "block_table", None)
    if table is None:
        return np.empty(0, np.int64)
    row: Integers = torch.as_tensor(table[0].block_table.cpu).numpy()[index]
    filled = getattr(table[0], "num_blocks_per_row", None)
    return row if filled is None else row[: int(filled[index])]


def slots_at(blocks_N: Integers, positions_K: Integers, block_size: int) -> Integers:
    """Map token positions through a request's blocks to slots, int64; −1 where it has no such block."""
    columns_K = positions_K // block_size
    is_known_K = columns_K < len(blocks_N)
    slots_K = np.full(len(positions_K), -1, np.int64)
    slots_K[is_known_K] = blocks_N[columns_K[is_known_K]].astype(np.int64) * block_size
    slots_K[is_known_K] += positions_K[is_known_K] % block_size
    return slots_K
