"""Ranks that share a forward come to one decision."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.signals import change_of


def test_alone_it_is_the_ratio() -> None:
    now, before = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0])
    assert Agreement().ratio(change_of(now, before)) == pytest.approx(1.0)
    assert Agreement().ratio(torch.tensor([0.0, 0.0])) == 0.0
    assert Agreement().ratio(torch.tensor([1.0, 0.0])) == math.inf
    assert math.isnan(Agreement().ratio(torch.tensor([math.nan, 1.0])))


def test_low_precision_is_measured_in_float32() -> None:
    before = torch.full((4096,), 100.0, dtype=torch.bfloat16)
    assert Agreement().ratio(change_of(before * 2, before)) == pytest.approx(1.0)


def _rank(rank: int, meeting: str, whole: list[float], ratios: list[torch.Tensor]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    group = dist.new_group([0, 1])
    before = torch.tensor(whole)
    now = before * torch.linspace(0.5, 1.4, len(whole))
    # Uneven shards: five values here, two there.
    mine = slice(0, 5) if rank == 0 else slice(5, None)
    pair = change_of(now[mine], before[mine])
    kept = pair.clone()
    ratios[rank].fill_(Agreement(group).ratio(pair))
    assert torch.equal(pair, kept)
    dist.destroy_process_group()


def test_two_ranks_with_uneven_shards_see_what_one_would_have_seen(tmp_path: Path) -> None:
    whole = [0.1, -2.0, 3.0, 0.4, 5.0, 6.0, -70.0]
    ratios = [torch.zeros(1).share_memory_() for _ in range(2)]
    mp.spawn(_rank, args=(str(tmp_path / "meeting"), whole, ratios), nprocs=2)
    before = torch.tensor(whole)
    expected = Agreement().ratio(change_of(before * torch.linspace(0.5, 1.4, 7), before))
    assert ratios[0].item() == ratios[1].item()
    assert ratios[0].item() == pytest.approx(expected)
