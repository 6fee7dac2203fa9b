"""Address space for a whole pool, physical memory only for the pages that hold data.

The operating system already has the page table that a paged pool would otherwise need, so the pool stays one dense
tensor: one vectorised write, one gather, no index translation.
"""

from __future__ import annotations

import logging
import mmap
import sys

import torch

__all__ = ["SparseMemory"]

logger = logging.getLogger(__name__)


class SparseMemory:
    """A zero-filled byte tensor whose pages become real when written and can be handed back.

    Args:
        num_bytes: address space to reserve, > 0.

    Attributes:
        bytes_N: the tensor, uint8, shape (num_bytes,).
        can_release: whether the platform takes pages back (Linux does).
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.can_release = sys.platform == "linux"
        if self.can_release:
            # NORESERVE: a pool may be larger than what the kernel would promise at once.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
            self._map: mmap.mmap | None = mmap.mmap(-1, num_bytes, flags=flags)
            self.bytes_N = torch.frombuffer(self._map, dtype=torch.uint8)
        else:
            logger.info("prefix cache: %s takes no pages back; freed blocks keep their memory", sys.platform)
            self._map = None
            self.bytes_N = torch.zeros(num_bytes, dtype=torch.uint8)

    def release(self, start: int, stop: int) -> None:
        """Hand the pages back that lie wholly inside [start, stop); they read as zeros afterwards."""
        if self._map is None:
            return
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = stop if stop == self.num_bytes else stop // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
