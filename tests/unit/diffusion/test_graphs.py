"""CUDA graphs return one buffer at every step, and fused kernels write in place: nothing that is kept changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import EasyCache, ErrorControl, EveryNth, ResidualDiff, SeaCache, Steps, TeaCache
from omnireuse.forecasters import FORECASTERS, Fitted
from omnireuse.loop.strategy import REGIONS
from tests.helpers.graphs import REPLAYS, static_outputs, writing_denoiser
from tests.helpers.sweep import crossed, sweep
from tests.helpers.tiny import TINY, Tiny

EVERY_SECOND = EveryNth(every=2)
WEIGHTS = Fitted(
    coordinates=tuple(1 - step / 6 for step in range(6)),
    weights=(((), (), (1.5, -0.5), (1.2, 0.1, -0.3), (0.9, 0.1), (2.0, -1.0)),),
    computed=(0, 1, 3, 5),
)
POLICIES: list[tuple[Any, tuple[str, ...]]] = [
    (EasyCache(threshold=0.5), ("step", "call")),
    (ErrorControl(tolerance=0.4), ("step", "call", "blocks")),
    (SeaCache(threshold=0.5), ("step", "call")),
    (TeaCache(rel_l1_thresh=0.5), ("blocks",)),
    (ResidualDiff(residual_diff_threshold=1e9, max_warmup_steps=1, max_continuous_cached_steps=2), ("tail",)),
]
CHOICES: list[dict[str, Any]] = [
    *({"forecaster": forecaster, "region": region} for forecaster in sorted(FORECASTERS) for region in REGIONS),
    *({"policy": Steps(steps=WEIGHTS.computed), "forecaster": WEIGHTS, "region": r} for r in ("step", "call")),
    *({"prediction_target": "output", "region": region} for region in REGIONS),
    *({"policy": policy, "region": region} for policy, regions in POLICIES for region in regions),
]
QUICK = [("flux", replay, {"forecaster": "blend", "region": region}) for replay in REPLAYS for region in REGIONS]
QUICK += [
    ("flux", "static outputs", choice) for choice in CHOICES if "prediction_target" in choice or "policy" in choice
]
CASES = [("flux", replay, choice) for replay in REPLAYS for choice in CHOICES]
CASES += [
    (name, replay, {"forecaster": "blend", "region": r})
    for name in ("qwen_image", "wan")
    for replay in REPLAYS
    for r in REGIONS
]


def run(tiny: Tiny, choice: dict[str, Any], **call: Any) -> torch.Tensor:
    with omnireuse.enable(tiny.pipe, **{"policy": EVERY_SECOND} | choice) as handle:
        latents = tiny.run(**call)
    assert handle.summary().reused_calls > 0
    assert latents.isfinite().all()
    return latents


@pytest.mark.parametrize(("name", "replay", "choice"), sweep(CASES, quick=QUICK))
def test_what_is_kept_stays_as_it_was(name: str, replay: str, choice: dict[str, Any]) -> None:
    tiny = TINY[name]()
    plain = run(tiny, choice)
    REPLAYS[replay](tiny)
    assert torch.equal(run(tiny, choice), plain)


@pytest.mark.parametrize("region", REGIONS)
def test_one_buffer_serves_every_call(flux: Tiny, region: str) -> None:
    plain = run(flux, {"region": region}, guided=False)
    static_outputs(flux, calls=1)
    assert torch.equal(run(flux, {"region": region}, guided=False), plain)


@pytest.mark.parametrize(("region", "replay"), crossed([*REGIONS], [*REPLAYS]))
def test_samples_of_a_batch_that_are_decided_on_separately(flux: Tiny, region: str, replay: str) -> None:
    policy = ResidualDiff(residual_diff_threshold=1e9, max_warmup_steps=1, max_continuous_cached_steps=2)
    choices = {"tail": {"policy": policy}, "blocks": {"policy": TeaCache(rel_l1_thresh=0.5)}}
    choice = {"region": region} | choices.get(region, {"policy": EasyCache(threshold=0.3)})
    plain = run(flux, choice, batch=3, steps=10)
    REPLAYS[replay](flux)
    assert torch.equal(run(flux, choice, batch=3, steps=10), plain)


@pytest.mark.parametrize("region", ["step", "call"])
def test_a_denoiser_that_writes_into_its_input(region: str) -> None:
    # The pipeline hands it a copy of the latents, one for each branch, so that nobody else sees it.
    tiny = TINY["stable_diffusion"]()
    plain = run(tiny, {"region": region})
    writing_denoiser(tiny)
    assert torch.equal(run(tiny, {"region": region}), plain)
