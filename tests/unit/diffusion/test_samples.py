"""A batch of n is decided on, and looks, like n runs of one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import Blend, TeaCache
from omnireuse.hooks.regions.rows import rows_of
from omnireuse.loop.strategy import Strategy
from tests.helpers.tiny import TINY, Tiny

BATCH = 3
STEPS = 10


def arguments(tiny: Tiny, guided: bool = True) -> dict[str, Any]:
    """Three samples that differ, so that a measuring policy has a reason to treat them differently."""
    given = tiny.inputs(guided=guided, batch=BATCH)
    return {
        name: value * torch.tensor([0.2, 1.0, 4.0]).reshape(-1, *(1,) * (value.ndim - 1))
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in given.items()
    }


def row(given: dict[str, Any], index: int) -> dict[str, Any]:
    return {key: value[index : index + 1] if isinstance(value, torch.Tensor) else value for key, value in given.items()}


def generators(*indices: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(index) for index in indices]


def threshold_between(tiny: Tiny, region: str) -> float:
    """One at which the first step that may be reused is reused for some samples only."""
    with omnireuse.enable(tiny.pipe, policy=TeaCache(rel_l1_thresh=1e-9), region=region) as handle:
        tiny.run(steps=STEPS, generator=generators(*range(BATCH)), **arguments(tiny))
    drifts = sorted({event.drift for event in handle.events if event.step == 1 and event.drift is not None})
    low, high = max(pairwise(drifts), key=lambda pair: pair[1] / pair[0])
    return (low + high) / 2


@pytest.mark.parametrize("region", ["step", "call"])
@pytest.mark.parametrize("name", ["flux", "stable_diffusion", "qwen_image"])
def test_each_sample_gets_what_it_would_get_alone(name: str, region: str) -> None:
    tiny = TINY[name]()
    given = arguments(tiny)
    policy = TeaCache(rel_l1_thresh=threshold_between(tiny, region))
    options: dict[str, Any] = {"policy": policy, "forecaster": Blend(), "region": region}
    rows: list[int] = []
    denoiser = getattr(tiny.pipe, "transformer", None) or tiny.pipe.unet
    denoiser.register_forward_hook(lambda module, inputs, output: rows.append(output[0].shape[0]))
    with omnireuse.enable(tiny.pipe, **options) as handle:
        verified = tiny.run(steps=STEPS, generator=generators(*range(BATCH)), **given)
        rows.clear()
        together = tiny.run(steps=STEPS, generator=generators(*range(BATCH)), **given)
        torch.testing.assert_close(verified, together)
        assert handle.summary().reused_calls > 0
        assert not handle.summary().fallbacks
    assert min(rows) < max(rows), "some calls compute a part of the batch"
    computed_together = sum(rows)
    rows.clear()
    for index in range(BATCH):
        with omnireuse.enable(tiny.pipe, **options):
            alone = tiny.run(steps=STEPS, generator=generators(index), **row(given, index))
        torch.testing.assert_close(together[index : index + 1], alone, rtol=1e-3, atol=1e-3)
    assert sum(rows) == computed_together, "nothing is computed that a run of one would not compute"


def test_the_batch_may_be_decided_on_as_a_whole(flux: Tiny) -> None:
    policy = TeaCache(rel_l1_thresh=threshold_between(flux, "step"))
    with omnireuse.enable(flux.pipe, Strategy(policy=policy, per_sample=False)) as handle:
        flux.run(steps=STEPS, generator=generators(*range(BATCH)), **arguments(flux))
    assert {event.sample for event in handle.events} == {None}
    assert len(handle.events) == STEPS


def test_a_schedule_decides_once_for_all_samples(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, speedup=2) as handle:
        flux.run(steps=STEPS, generator=generators(*range(BATCH)), **arguments(flux))
    assert {event.sample for event in handle.events} == {None}


@pytest.mark.parametrize("region", ["step", "call"])
def test_a_batch_that_computes_everything_is_untouched(flux: Tiny, region: str) -> None:
    given = arguments(flux)
    plain = flux.run(steps=STEPS, generator=generators(*range(BATCH)), **given)
    with omnireuse.enable(flux.pipe, policy=TeaCache(rel_l1_thresh=1e-9), region=region):
        watched = flux.run(steps=STEPS, generator=generators(*range(BATCH)), **given)
    assert torch.equal(plain, watched)


def test_what_belongs_to_a_row_is_proposed_by_lengths_and_told_by_declarations() -> None:
    rows, batch = (2, 0), 3
    per_row = torch.arange(6).reshape(3, 2)
    cut = [[4, 5], [0, 1]]
    given = {
        "tensor": per_row,
        "shared": per_row,
        "scalar": torch.tensor(7.0),
        "list": ["a", "b", "c"],
        "nested": [[1, 2, 3]],
        "record": (1.0, 2.0, 3.0),
        "mapping": {"scale": 1.0, "residuals": (per_row, per_row)},
        "layers": [per_row, per_row, per_row],
        "second": per_row.T,
        "frames": torch.arange(6),
        "none": None,
    }
    found = rows_of(given, rows, batch, {"shared": None, "second": 1, "frames": 0})
    assert found["tensor"].tolist() == cut
    assert found["shared"] is per_row
    assert found["scalar"].item() == 7.0
    assert found["list"] == ["c", "a"]
    assert found["nested"] == [[1, 2, 3]]
    assert found["record"] == (1.0, 2.0, 3.0)
    assert [part.tolist() for part in found["mapping"]["residuals"]] == [cut, cut]
    assert [part.tolist() for part in found["layers"]] == [cut, cut, cut]
    assert found["second"].T.tolist() == cut
    assert found["frames"].tolist() == [4, 5, 0, 1]
    assert found["none"] is None
