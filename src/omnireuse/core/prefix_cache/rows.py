"""The rows of one cached output, with the step in which each was written."""

from __future__ import annotations

import mmap

import torch

from omnireuse.core.prefix_cache.memory import SparseMemory
from omnireuse.core.prefix_cache.options import require_size

__all__ = ["RowStore"]

# Rows are moved as integers of their dtype's size: index kernels do not exist for every dtype (float8), bits always do.
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

# Legend: B block, O offset in a block, F feature, S slot = block · block_size + offset, K rows of one call.


class RowStore:
    """Rows of one output for every slot of the engine, none of them present at first.

    Args:
        num_blocks, block_size: shape of the engine's KV cache.
        feature_shape: shape of one row; stored flat.
        dtype: dtype of one row.

    Attributes:
        rows_BOF: the dense view, (num_blocks, block_size, prod(feature_shape)), on the CPU. Rows that are not present
            have no meaning in it.
        version_S: int32, the step that wrote the slot; 0 where no row is present.
    """

    def __init__(self, num_blocks: int, block_size: int, feature_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.feature_shape, self.dtype = tuple(feature_shape), dtype
        self.block_size, self.num_slots = block_size, num_blocks * block_size
        width = 1
        for size in feature_shape:
            width *= require_size("prefix cache: a feature dimension", size)
        self._block_bytes = block_size * width * dtype.itemsize
        self._memory = SparseMemory(num_blocks * self._block_bytes)
        self.rows_BOF = self._memory.bytes_N.view(dtype).view(num_blocks, block_size, width)
        self._raw_SF = self.rows_BOF.view(self.num_slots, width).view(_RAW[dtype.itemsize])
        self.version_S = torch.zeros(self.num_slots, dtype=torch.int32)
        self._used_B = torch.zeros(num_blocks, dtype=torch.bool)

    @property
    def num_bytes_in_use(self) -> int:
        """Bytes of the blocks that hold at least one row."""
        return int(self._used_B.sum()) * self._block_bytes

    def to_raw(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows of `feature_shape` as raw rows (rows, width)."""
        return rows.detach().reshape(rows.shape[0], self._raw_SF.shape[1]).view(self._raw_SF.dtype)

    def from_raw(self, raw_KF: torch.Tensor) -> torch.Tensor:
        """Return raw rows as rows of `feature_shape` and dtype."""
        return raw_KF.view(self.dtype).view(-1, *self.feature_shape)

    def new_raw(self, num_rows: int) -> torch.Tensor:
        """Return an uninitialised tensor for raw rows."""
        return torch.empty(num_rows, self._raw_SF.shape[1], dtype=self._raw_SF.dtype)

    def write(self, slots_K: torch.Tensor, raw_KF: torch.Tensor, step: int | torch.Tensor) -> None:
        """Write raw rows at their slots and remember the step (one, or one per row)."""
        self._raw_SF.index_copy_(0, slots_K, raw_KF)
        if isinstance(step, torch.Tensor):
            self.version_S.index_copy_(0, slots_K, step)
        else:
            self.version_S.index_fill_(0, slots_K, step)
        self._used_B.index_fill_(0, slots_K // self.block_size, True)

    def forget_older(self, slots_K: torch.Tensor, step: int) -> None:
        """Make rows at these slots absent if an earlier step wrote them: the slot holds other content now."""
        stale_K = self.version_S[slots_K] < step
        self.version_S.index_fill_(0, slots_K[stale_K], 0)

    def num_absent(self, blocks_N: torch.Tensor) -> int:
        """Count the rows of these blocks that are not present."""
        present_NO = self.version_S.view(-1, self.block_size)[blocks_N] > 0
        return int(present_NO.numel() - present_NO.sum())

    def read_into(self, blocks_N: torch.Tensor, out_KF: torch.Tensor) -> None:
        """Gather whole blocks into raw rows `out_KF`, (blocks · block_size, width), contiguous."""
        width = self.block_size * self._raw_SF.shape[1]
        torch.index_select(self._raw_SF.view(-1, width), 0, blocks_N, out=out_KF.view(-1, width))

    def zero_absent(self, blocks_N: torch.Tensor, out_KF: torch.Tensor) -> None:
        """Zero the rows of a gather that are not present; what lies there may be other content."""
        absent_K = (self.version_S.view(-1, self.block_size)[blocks_N] == 0).view(-1)
        out_KF[absent_K] = 0

    def release(self, blocks_N: torch.Tensor) -> None:
        """Make these blocks absent and hand their pages back, shared pages once the last block on them is gone."""
        self.version_S.view(-1, self.block_size).index_fill_(0, blocks_N, 0)
        self._used_B.index_fill_(0, blocks_N, False)
        used = self._used_B
        for first, last in _runs(sorted(set(blocks_N.tolist()))):
            # Neighbours on the same page that are unused widen the range, so that small blocks free their pages too.
            reach = max(1, mmap.PAGESIZE // self._block_bytes + 1)
            while first > 0 and reach and not used[first - 1]:
                first, reach = first - 1, reach - 1
            reach = max(1, mmap.PAGESIZE // self._block_bytes + 1)
            while last + 1 < len(used) and reach and not used[last + 1]:
                last, reach = last + 1, reach - 1
            self._memory.release(first * self._block_bytes, (last + 1) * self._block_bytes)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
