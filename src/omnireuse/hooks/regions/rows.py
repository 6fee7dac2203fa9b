"""Rows of a batch: those of a call's arguments, and of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["row_of", "rows_of", "with_rows"]

SHARED_BY_ROWS = ("img_ids", "txt_ids", "image_rotary_emb", "rotary_emb", "freqs_cis", "pos_embed")
"""Arguments of diffusers' denoisers that hold positions, one row a token: as long as the batch by accident only."""


def rows_of(value: Any, rows: torch.Tensor, batch: int, name: str = "") -> Any:
    """The part of an argument that belongs to some rows of the batch; what no row owns stays as it is.

    Args:
        value: tensors whose first dimension is the batch, sequences of one entry a row, and nested sequences and
            mappings of those.
        rows: (r,) indices, int64.
        batch: rows of the whole call.
        name: of the argument.
    """
    if name in SHARED_BY_ROWS:
        return value
    if isinstance(value, torch.Tensor):
        is_batched = value.ndim > 0 and value.shape[0] == batch
        return value.index_select(0, rows.to(value.device)) if is_batched else value
    if isinstance(value, Mapping):
        return {key: rows_of(item, rows, batch, str(key)) for key, item in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    has_rows = any(isinstance(item, torch.Tensor) and item.ndim > 0 and item.shape[0] == batch for item in value)
    if len(value) == batch and not has_rows:
        items = [value[row] for row in rows.tolist()]
    else:
        items = [rows_of(item, rows, batch) for item in value]
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return items


def row_of(batch: torch.Tensor, row: int | None) -> torch.Tensor:
    """One row, as a batch of one; all of them for None."""
    return batch if row is None else batch[row : row + 1]


def with_rows(whole: torch.Tensor, rows: Sequence[int], part: torch.Tensor) -> torch.Tensor:
    """A copy of `whole` in which `rows` are those of `part`."""
    return whole.index_copy(0, torch.tensor(rows, device=whole.device), part)
