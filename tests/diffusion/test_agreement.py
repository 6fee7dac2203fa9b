"""Ranks that share a forward come to one decision."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tiny import TINY

import omnireuse
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.signals import change_by_sample, change_of


def test_alone_it_is_the_ratio() -> None:
    now, before = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0])
    assert Agreement().ratio(change_of(now, before)) == pytest.approx(1.0)
    assert Agreement().ratio(torch.tensor([0.0, 0.0])) == 0.0
    assert Agreement().ratio(torch.tensor([1.0, 0.0])) == math.inf
    assert math.isnan(Agreement().ratio(torch.tensor([math.nan, 1.0])))


def test_of_several_pairs_the_largest_ratio_counts() -> None:
    now, before = torch.tensor([[1.0, 3.0], [8.0, 8.0]]), torch.tensor([[1.0, 1.0], [8.0, 8.0]])
    assert Agreement().ratio(change_by_sample(now, before)) == pytest.approx(1.0)
    assert Agreement().ratio(change_of(now, before)) == pytest.approx(2 / 18)
    assert math.isnan(Agreement().ratio(torch.tensor([[2.0, 1.0], [math.nan, 1.0], [3.0, 1.0]])))
    assert Agreement().ratio(torch.tensor([[0.0, 0.0], [1.0, 0.0]])) == math.inf


def test_low_precision_is_measured_in_float32() -> None:
    before = torch.full((4096,), 100.0, dtype=torch.bfloat16)
    assert Agreement().ratio(change_of(before * 2, before)) == pytest.approx(1.0)


WHOLE = [0.1, -2.0, 3.0, 0.4, 5.0, 6.0, -70.0]
SCHEDULES = ([1 - i / 16 for i in range(16)], [(1 - i / 16) ** 3 for i in range(16)])


def _shards() -> tuple[torch.Tensor, torch.Tensor]:
    before = torch.tensor(WHOLE)
    return before * torch.linspace(0.5, 1.4, len(WHOLE)), before


def decisions(rank: int, group: dist.ProcessGroup | None) -> list[bool]:
    """What a rank does whose schedule, and so whose measured change, differs from the other's."""
    tiny = TINY["flux"]()
    policy = omnireuse.TeaCache(rel_l1_thresh=0.2)
    with omnireuse.enable(tiny.pipe, policy=policy, region="call", signal="latents", group=group) as handle:
        tiny.run(steps=None, sigmas=SCHEDULES[rank], guided=False)
    return [event.reused for event in handle.events]


def _rank(rank: int, meeting: str, ratios: torch.Tensor, decided: torch.Tensor) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    group = dist.new_group([0, 1])
    now, before = _shards()
    # Uneven shards: five values here, two there.
    mine = slice(0, 5) if rank == 0 else slice(5, None)
    pair = change_of(now[mine], before[mine])
    kept = pair.clone()
    ratios[rank] = Agreement(group).ratio(pair)
    assert torch.equal(pair, kept)
    decided[rank] = torch.tensor(decisions(rank, group))
    dist.destroy_process_group()


def test_two_ranks_measure_and_decide_as_one(tmp_path: Path) -> None:
    ratios, decided = torch.zeros(2).share_memory_(), torch.zeros(2, 16, dtype=torch.bool).share_memory_()
    mp.spawn(_rank, args=(str(tmp_path / "meeting"), ratios, decided), nprocs=2)
    expected = Agreement().ratio(change_of(*_shards()))
    assert ratios.tolist() == pytest.approx([expected, expected])
    assert ratios[0] == ratios[1]
    assert torch.equal(decided[0], decided[1])
    assert decided[0].any()
    assert decisions(0, None) != decisions(1, None)
