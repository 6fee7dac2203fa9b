"""Chunks of outputs kept on the device until their request finishes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Chunk", "DeferredChunks", "in_token_order"]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows of one request from token `start` on, as one step produced them."""

    start: int
    rows: torch.Tensor
    step: int


class DeferredChunks:
    """What is staged, by request and key, in the order of staging."""

    def __init__(self) -> None:
        self._by_request: dict[str, dict[str, list[Chunk]]] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def add(self, req_id: str, key: str, chunk: Chunk) -> None:
        """Stage one chunk."""
        self._by_request.setdefault(req_id, {}).setdefault(key, []).append(chunk)

    def of(self, req_id: str) -> dict[str, list[Chunk]]:
        """Return the chunks of a request by key; empty if none are staged."""
        return self._by_request.get(req_id, {})

    def discard(self, req_id: str) -> None:
        """Drop the chunks of a request; none staged is fine."""
        self._by_request.pop(req_id, None)

    def discard_key(self, key: str) -> None:
        """Drop the chunks of one key for all requests."""
        for chunks in self._by_request.values():
            chunks.pop(key, None)

    @property
    def num_bytes(self) -> int:
        """Bytes held on the device."""
        return sum(c.rows.nbytes for keys in self._by_request.values() for chunks in keys.values() for c in chunks)


def in_token_order(chunks: list[Chunk]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Join chunks to (token positions, rows, steps), sorted, each token once.

    A token staged twice (its request was preempted and computed again) keeps the rows staged last.
    """
    positions = torch.cat([torch.arange(c.start, c.start + c.rows.shape[0]) for c in chunks])
    steps = torch.cat([torch.full((c.rows.shape[0],), c.step, dtype=torch.int32) for c in chunks])
    rows = chunks[0].rows if len(chunks) == 1 else torch.cat([c.rows for c in chunks])
    order = torch.arange(len(positions))
    unique, inverse = positions.unique(return_inverse=True)
    last = torch.zeros_like(unique).scatter_reduce_(0, inverse, order, "amax", include_self=True)
    if not torch.equal(last, order):
        rows = rows.index_select(0, last.to(rows.device))
    return unique, rows, steps[last]
