"""Ranks that share a forward come to one decision."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import omnireuse
from omnireuse.errors import StateError
from omnireuse.loop.agreement import Agreement
from omnireuse.noise.signals import change_of
from omnireuse.policies.base import Policy
from tests.helpers.tiny import TINY


def test_alone_it_is_the_ratio() -> None:
    now, before = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0])
    assert Agreement().ratio(change_of(now, before)) == pytest.approx(1.0)
    assert Agreement().ratio(torch.tensor([0.0, 0.0])) == 0.0
    assert Agreement().ratio(torch.tensor([1.0, 0.0])) == math.inf
    assert math.isnan(Agreement().ratio(torch.tensor([math.nan, 1.0])))


def test_low_precision_is_measured_in_float32() -> None:
    before = torch.full((4096,), 100.0, dtype=torch.bfloat16)
    assert Agreement().ratio(change_of(before * 2, before)) == pytest.approx(1.0)


WHOLE = [0.1, -2.0, 3.0, 0.4, 5.0, 6.0, -70.0]
POLICIES = (
    omnireuse.TeaCache(rel_l1_thresh=0.2),
    omnireuse.EasyCache(threshold=0.4),
    omnireuse.SeaCache(threshold=0.2),
    *(omnireuse.ErrorControl(tolerance=tolerance) for tolerance in (0.29, 0.41, 0.62, 0.82)),
)
SCHEDULES = ([1 - i / 16 for i in range(16)], [(1 - i / 16) ** 3 for i in range(16)])


def _shards() -> tuple[torch.Tensor, torch.Tensor]:
    before = torch.tensor(WHOLE)
    return before * torch.linspace(0.5, 1.4, len(WHOLE)), before


def decisions(policy: Policy, rank: int, group: dist.ProcessGroup | None) -> list[bool]:
    """What a rank does that measures something else than the other: by another schedule, or by other noise where the
    schedule itself counts."""
    tiny = TINY["flux"]()
    by_noise = policy.needs_error
    sigmas, seed = SCHEDULES[0 if by_noise else rank], rank if by_noise else 0
    with omnireuse.enable(tiny.pipe, policy=policy, region="call", group=group) as handle:
        tiny.run(steps=None, sigmas=sigmas, seed=seed, guided=False)
    return [event.reused for event in handle.events]


def _fails() -> None:
    raise MemoryError("no room")


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
    with pytest.raises(StateError, match="MemoryError: no room"):  # the other rank does not wait for a value
        Agreement(group).of_first(_fails)
    for number, policy in enumerate(POLICIES):
        decided[number, rank] = torch.tensor(decisions(policy, rank, group))
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_measure_and_decide_as_one(tmp_path: Path) -> None:
    ratios = torch.zeros(2).share_memory_()
    decided = torch.zeros(len(POLICIES), 2, 16, dtype=torch.bool).share_memory_()
    mp.spawn(_rank, args=(str(tmp_path / "meeting"), ratios, decided), nprocs=2)
    expected = Agreement().ratio(change_of(*_shards()))
    assert ratios.tolist() == pytest.approx([expected, expected])
    assert ratios[0] == ratios[1]
    for policy, (first, second) in zip(POLICIES, decided, strict=True):
        assert torch.equal(first, second), policy
        assert first.any(), policy
    for kind in {type(policy) for policy in POLICIES}:
        own = [policy for policy in POLICIES if type(policy) is kind]
        assert any(decisions(policy, 0, None) != decisions(policy, 1, None) for policy in own), kind
