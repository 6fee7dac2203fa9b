"""Tuning under CUDA graphs and kernels that write in place: the same plan, and the same pictures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.tuning.budget import JUDGED
from tests.helpers.graphs import REPLAYS
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import small_flux as tiny_flux

STEPS = 24


def tuned(flux: Tiny, **choice: Any) -> tuple[list[torch.Tensor], Any]:
    measured = JUDGED if "tolerance" in choice else 2
    with omnireuse.enable(flux.pipe, tune=2, **choice) as handle:
        made = [flux.run(steps=STEPS, seed=seed) for seed in range(measured + 1)]
    assert handle.tuning.state == "ready"
    assert handle.summary().reused_calls > 0
    return made, handle.tuning.expected


@pytest.mark.slow
@pytest.mark.parametrize("choice", [{}, {"tolerance": 0.2}], ids=["default", "tolerance"])
@pytest.mark.parametrize("replay", REPLAYS)
def test_the_pictures_are_those_without(
    replay: str, choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "plain"))
    plain, expected = tuned(tiny_flux(), **choice)
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "replayed"))
    flux = tiny_flux()
    REPLAYS[replay](flux)
    made, found = tuned(flux, **choice)
    assert found == expected
    assert all(torch.equal(a, b) for a, b in zip(made, plain, strict=True))
