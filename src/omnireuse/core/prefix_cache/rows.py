"""The rows of one cached output, with the step that wrote each of them."""

from __future__ import annotations

import mmap
import sys
import weakref

import numpy as np
import numpy.typing as npt
import torch

from omnireuse.base.validation import require_size

__all__ = ["Integers", "Mask", "MergeBuffers", "RawRows", "RowStore"]

# Legend: B block, O offset in a block, F feature, S slot = block · block_size + offset, K rows of one call.

Integers = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
RawRows = npt.NDArray[np.void]
"""Rows as opaque bytes, one element each: numpy then copies a row at a time, whatever its dtype."""


class RowStore:
    """Rows of one output for every slot of the engine, none of them present at first.

    The store is address space: the operating system commits a page when a row is written on it (Linux; elsewhere the
    memory is allocated at once). It is one dense tensor, so a write is one indexed copy and a read one gather.

    Args:
        num_blocks, block_size: shape of the engine's KV cache.
        feature_shape: shape of one row; stored flat.

    Attributes:
        rows_BOF: the dense view, (num_blocks, block_size, prod(feature_shape)). Absent rows have no meaning in it.
        rows_S: the same memory as raw rows.
        version_S: int64, the step that wrote the slot; 0 if no row is present.
    """

    def __init__(self, num_blocks: int, block_size: int, feature_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.feature_shape, self.dtype, self.block_size = tuple(feature_shape), dtype, block_size
        for size in feature_shape:
            require_size("prefix cache: a feature dimension", size, least=0)
        self.width = int(np.prod(feature_shape))
        self._row_bytes = max(self.width * dtype.itemsize, 1)  # numpy has no elements of no bytes
        self._block_bytes = block_size * self._row_bytes
        self._map: mmap.mmap | None = None
        num_bytes = num_blocks * self._block_bytes
        if sys.platform == "linux":
            # NORESERVE: a pool may be larger than what the kernel would promise at once.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
            self._map = mmap.mmap(-1, num_bytes, flags=flags)
            memory = torch.frombuffer(self._map, dtype=torch.uint8)
        else:
            memory = torch.zeros(num_bytes, dtype=torch.uint8)
        self._raw_dtype = np.dtype((np.void, self._row_bytes))
        self.rows_S = memory.numpy().view(self._raw_dtype)
        values = memory.view(dtype) if self.width else torch.empty(0, dtype=dtype)
        self.rows_BOF = values.view(num_blocks, block_size, self.width)
        self.version_S = np.zeros(num_blocks * block_size, np.int64)

    @property
    def num_bytes_in_use(self) -> int:
        """Bytes of the blocks that hold at least one row."""
        return int(self._used(slice(None)).sum()) * self._block_bytes

    def flat(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows of `feature_shape` as (rows, width)."""
        rows = rows.detach()
        return rows if rows.ndim == 2 else rows.reshape(rows.shape[0], self.width)

    def raw(self, rows_KF: torch.Tensor) -> RawRows:
        """Return CPU rows, (rows, width), as raw rows that share their memory if they are contiguous."""
        if not self.width:
            return np.zeros(len(rows_KF), self._raw_dtype)
        return rows_KF.contiguous().view(torch.uint8).numpy().view(self._raw_dtype)[:, 0]

    def parts(self, memory: npt.NDArray[np.uint8], names: list[str], num_rows_R: Integers) -> dict[str, torch.Tensor]:
        """View rows that lie in a row in this memory as tensors, that many for each name."""
        has_values = len(memory) and self.width
        whole = torch.frombuffer(memory, dtype=self.dtype) if has_values else torch.empty(0, dtype=self.dtype)
        sizes = num_rows_R.tolist()
        rows = whole.view(sum(sizes), *self.feature_shape)
        return dict(zip(names, torch.split_with_sizes(rows, sizes), strict=True))

    def write(self, slots_K: Integers, rows_K: RawRows, step: int | Integers) -> None:
        """Write raw rows at their slots and remember the step (one, or one per row)."""
        self.rows_S[slots_K] = rows_K
        self.version_S[slots_K] = step

    def forget_older(self, slots_K: Integers, step: int) -> None:
        """Make rows at these slots absent if an earlier step wrote them: the slot holds other content now."""
        self.version_S[slots_K[self.version_S[slots_K] < step]] = 0

    def absent(self, slots_K: Integers) -> Mask:
        """Tell for each slot whether its row is absent; slot −1, of a token without a block, always is."""
        is_absent_K: Mask = self.version_S[slots_K] == 0
        return is_absent_K | (slots_K < 0) if slots_K.min(initial=0) < 0 else is_absent_K

    def _used(self, blocks: slice) -> Mask:
        """Tell for each of these blocks whether it holds a row."""
        is_used: Mask = self.version_S.reshape(-1, self.block_size)[blocks].max(1, initial=0) > 0
        return is_used

    def release(self, blocks_N: Integers) -> None:
        """Make these blocks absent and return the pages on which no block holds rows any more."""
        self.version_S.reshape(-1, self.block_size)[blocks_N] = 0
        if self._map is None:
            return
        size, page = self._block_bytes, mmap.PAGESIZE
        # Blocks that share a page with a released one: the page goes if none of them is used.
        reach = page // size + 1
        blocks_N = np.unique(blocks_N)
        for run in np.split(blocks_N, np.flatnonzero(np.diff(blocks_N) > 1) + 1) if len(blocks_N) else ():
            first, stop = int(run[0]), int(run[-1]) + 1
            before, after = self._used(slice(max(first - reach, 0), first))[::-1], self._used(slice(stop, stop + reach))
            first -= int(before.argmax()) if before.any() else len(before)
            stop += int(after.argmax()) if after.any() else len(after)
            start = -(-first * size // page) * page
            end = len(self._map) if stop == len(self.rows_BOF) else stop * size // page * page
            if start < end:
                self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


class MergeBuffers:
    """Memory for merged rows, used again once nobody refers to what was handed out of it.

    As many buffers are kept as were in use at one time, so that each key of a step finds the memory of the step before.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[npt.NDArray[np.uint8], weakref.ref[npt.NDArray[np.uint8]]]] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer, _ in self._buffers)

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return uninitialised bytes; they are free again when the returned array and all its views are gone.

        The smallest free buffer that is large enough is used. If there is none, all free ones make way for a new one.
        """
        free = [index for index, (_, lent) in enumerate(self._buffers) if lent() is None]
        fits = [index for index in free if self._buffers[index][0].nbytes >= num_bytes]
        if fits:
            buffer, _ = self._buffers.pop(min(fits, key=lambda index: self._buffers[index][0].nbytes))
        else:
            self._buffers = [each for index, each in enumerate(self._buffers) if index not in free]
            buffer = torch.empty(num_bytes, dtype=torch.uint8).numpy()
        part = buffer[:num_bytes]
        self._buffers.append((buffer, weakref.ref(part)))
        return part
