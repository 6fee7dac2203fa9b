"""The rows of one cached output, with the step in which each was written."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt
import torch

from omnireuse.core.prefix_cache.batch import Blocks
from omnireuse.core.prefix_cache.memory import SparseMemory
from omnireuse.core.prefix_cache.options import require_size

__all__ = ["RawRows", "RowStore"]

RawRows = npt.NDArray[np.generic]

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
        self._rows_SF: RawRows = self._raw_SF.numpy()  # the same memory
        self.version_S = torch.zeros(self.num_slots, dtype=torch.int32)
        self._used_B = torch.zeros(num_blocks, dtype=torch.bool)

    @property
    def num_bytes_in_use(self) -> int:
        """Bytes of the blocks that hold at least one row."""
        return int(self._used_B.sum()) * self._block_bytes

    def to_raw(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows of `feature_shape` as raw rows (rows, width)."""
        return rows.detach().reshape(rows.shape[0], self._raw_SF.shape[1]).view(self._raw_SF.dtype)

    def from_raw(self, raw_KF: RawRows) -> torch.Tensor:
        """Return raw rows as rows of `feature_shape` and dtype."""
        return torch.from_numpy(raw_KF).view(self.dtype).view(-1, *self.feature_shape)

    def new_raw(self, num_rows: int) -> RawRows:
        """Return an uninitialised array for raw rows."""
        return np.empty((num_rows, self._rows_SF.shape[1]), self._rows_SF.dtype)

    def write(self, slots_K: torch.Tensor, raw_KF: torch.Tensor, step: int | torch.Tensor) -> None:
        """Write raw rows at their slots and remember the step (one, or one per row)."""
        # numpy copies a row at a time; index_copy_ an element at a time, at a quarter of the speed for two-byte rows.
        slots = slots_K.numpy()
        self._rows_SF[slots] = raw_KF.numpy()
        self.version_S.numpy()[slots] = step.numpy() if isinstance(step, torch.Tensor) else step
        self._used_B.numpy()[slots // self.block_size] = True

    def forget_older(self, slots_K: torch.Tensor, step: int) -> None:
        """Make rows at these slots absent if an earlier step wrote them: the slot holds other content now."""
        stale_K = self.version_S[slots_K] < step
        self.version_S.index_fill_(0, slots_K[stale_K], 0)

    def num_absent(self, blocks_by_hit: list[Blocks]) -> list[int]:
        """Count for each of several lists of blocks, none empty, the rows that are not present."""
        if not blocks_by_hit:
            return []
        absent_N = self._is_absent(np.concatenate(blocks_by_hit)).sum(axis=1)
        starts = np.cumsum([0, *(len(blocks_N) for blocks_N in blocks_by_hit[:-1])])
        return [int(count) for count in np.add.reduceat(absent_N, starts)]

    def read_into(self, blocks_N: Blocks, out_KF: RawRows) -> None:
        """Gather whole blocks into raw rows `out_KF`, (blocks · block_size, width), contiguous."""
        width = self.block_size * self._rows_SF.shape[1]
        # The blocks were checked; "raise" would check again and gather into a buffer first.
        np.take(self._rows_SF.reshape(-1, width), blocks_N, axis=0, out=out_KF.reshape(-1, width), mode="clip")

    def zero_absent(self, blocks_N: Blocks, out_KF: RawRows) -> None:
        """Zero the rows of a gather that are not present; what lies there may be other content."""
        out_KF[self._is_absent(blocks_N).reshape(-1)] = 0

    def _is_absent(self, blocks_N: Blocks) -> npt.NDArray[np.bool_]:
        absent_NO: npt.NDArray[np.bool_] = self.version_S.numpy().reshape(-1, self.block_size)[blocks_N] == 0
        return absent_NO

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
