"""An engine's batch as the prefix cache sees it, for tests."""

from __future__ import annotations

from types import SimpleNamespace

import torch


def make_batch(computed: list[int], blocks: list[list[int]], num_groups: int = 1) -> SimpleNamespace:
    """Build a batch of requests "r0", "r1", … that hold these blocks and have this many computed tokens."""
    width = max((len(row) for row in blocks), default=1) or 1
    table = torch.zeros(len(blocks), width, dtype=torch.int32)
    for index, row in enumerate(blocks):
        table[index, : len(row)] = torch.tensor(row, dtype=torch.int32)
    group = SimpleNamespace(block_table=SimpleNamespace(cpu=table))
    return SimpleNamespace(
        req_id_to_index={f"r{index}": index for index in range(len(blocks))},
        num_computed_tokens_cpu=computed,
        block_table=[group] * num_groups,
    )


def slots_of(blocks: list[int], start: int, count: int, block_size: int) -> torch.Tensor:
    """Slots of `count` tokens from token `start` on."""
    return torch.tensor([blocks[t // block_size] * block_size + t % block_size for t in range(start, start + count)])
