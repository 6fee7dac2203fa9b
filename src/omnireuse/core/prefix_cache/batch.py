"""Read the engine's batch: which request owns which rows, blocks and slots.

The batch is duck-typed as vLLM V1's `InputBatch`: `req_id_to_index`, `num_computed_tokens_cpu` and
`block_table[0].block_table.cpu`, a tensor of block ids (requests, blocks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from omnireuse.errors import ConfigError, StateError, UnsupportedModelError, WrongTypeError

__all__ = ["NO_BLOCKS", "Blocks", "Span", "blocks_of", "cached_blocks", "slots_at", "spans_of"]

Blocks = npt.NDArray[np.int64]
NO_BLOCKS: Blocks = np.empty(0, np.int64)


class Span(NamedTuple):
    """The rows of one request in this step's outputs: [start, start + num_tokens)."""

    req_id: str
    batch_index: int
    start: int
    num_tokens: int

    @property
    def stop(self) -> int:
        """One past the last row."""
        return self.start + self.num_tokens


def spans_of(
    query_start_loc: torch.Tensor | Sequence[int], input_batch: Any, num_scheduled_tokens: Mapping[str, int]
) -> list[Span]:
    """List the span of every request in the batch; one that is not scheduled has no rows.

    Raises:
        WrongTypeError: `num_scheduled_tokens` is no mapping.
        ConfigError: `query_start_loc` has no entry for a scheduled request.
        UnsupportedModelError: the batch has several KV cache groups.
    """
    if not isinstance(num_scheduled_tokens, Mapping):
        raise WrongTypeError(
            f"num_scheduled_tokens must map request ids to counts, got {type(num_scheduled_tokens).__name__}"
        )
    _require_one_group(input_batch)
    starts = query_start_loc.tolist() if isinstance(query_start_loc, torch.Tensor) else list(query_start_loc)
    spans = []
    for req_id, index in input_batch.req_id_to_index.items():
        num_tokens = int(num_scheduled_tokens.get(req_id, 0))
        if num_tokens and index >= len(starts):
            raise ConfigError(
                f"query_start_loc: must have an entry for every request, got {len(starts)} entries and request "
                f"{req_id!r} at index {index}"
            )
        spans.append(
            Span(req_id=req_id, batch_index=index, start=int(starts[index]) if num_tokens else 0, num_tokens=num_tokens)
        )
    return spans


def cached_blocks(input_batch: Any, spans: Sequence[Span], block_size: int) -> dict[str, Blocks]:
    """Return the ids of the full blocks that each request starts on, int64; one that starts on none is left out."""
    blocks_by_request: dict[str, Blocks] = {}
    table = None
    for span in spans:
        num_blocks = int(input_batch.num_computed_tokens_cpu[span.batch_index]) // block_size
        if num_blocks:
            if table is None:
                table = torch.as_tensor(input_batch.block_table[0].block_table.cpu).numpy()
            _require_blocks(input_batch, span.batch_index, num_blocks, table.shape[1])
            blocks_by_request[span.req_id] = table[span.batch_index, :num_blocks].astype(np.int64)
    return blocks_by_request


def blocks_of(input_batch: Any, index: int) -> Blocks | None:
    """Return the ids of the blocks of one request; None for a batch without a block table."""
    table = getattr(input_batch, "block_table", None)
    if table is None:
        return None
    row: Blocks = torch.as_tensor(table[0].block_table.cpu).numpy()[index]
    filled = getattr(table[0], "num_blocks_per_row", None)
    return row if filled is None else row[: int(filled[index])]


def slots_at(blocks_N: Blocks, positions_K: npt.NDArray[np.int64], block_size: int) -> npt.NDArray[np.int64]:
    """Map token positions through a request's blocks to slots, int64; −1 where it has no such block."""
    columns_K = positions_K // block_size
    is_known_K = columns_K < len(blocks_N)
    slots_K = np.full(len(positions_K), -1, np.int64)
    slots_K[is_known_K] = blocks_N[columns_K[is_known_K]].astype(np.int64) * block_size
    slots_K[is_known_K] += positions_K[is_known_K] % block_size
    return slots_K


def _require_one_group(input_batch: Any) -> None:
    table = getattr(input_batch, "block_table", None)
    groups = getattr(table, "block_tables", table)
    if isinstance(groups, (list, tuple)) and len(groups) > 1:
        raise UnsupportedModelError(
            f"input_batch.block_table: must have one KV cache group, got {len(groups)}: slots of several groups do not "
            "name one row; turn the prefix cache off for hybrid models"
        )


def _require_blocks(input_batch: Any, index: int, num_blocks: int, num_columns: int) -> None:
    filled = getattr(input_batch.block_table[0], "num_blocks_per_row", None)
    limit = int(filled[index]) if filled is not None else num_columns
    if num_blocks > limit:
        raise StateError(
            f"input_batch.block_table: request at index {index} must have {num_blocks} blocks for its tokens, got "
            f"{limit}; read it before the request leaves the batch"
        )
