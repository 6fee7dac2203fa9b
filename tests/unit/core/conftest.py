from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from omnireuse.core.prefix_cache import writer


class Copy:
    """A host copy that becomes readable only when told, as from a busy device."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.done, self.is_broken = threading.Event(), False
        self.snapshots, self.host = [t.clone() for t in tensors], [torch.empty_like(t) for t in tensors]

    def finish(self) -> None:
        for target, source in zip(self.host, self.snapshots, strict=True):
            target.copy_(source)
        self.done.set()

    def synchronize(self) -> None:
        assert self.done.wait(timeout=30)
        if self.is_broken:
            raise MemoryError("gone")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Copy]:
    """The copies that are begun, on a device that a test plays."""
    begun: list[Copy] = []

    def start(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Copy]:
        begun.append(Copy(tensors))
        return begun[-1].host, begun[-1]

    monkeypatch.setattr(writer, "start_host_copies", start)
    return begun
