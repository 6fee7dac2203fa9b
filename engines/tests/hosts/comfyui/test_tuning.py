"""Tuning inside ComfyUI's own samplers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from engines.tests.hosts.comfyui.conftest import IN_COMFYUI
from omnireuse_engines.comfyui import reuse_of
from omnireuse_engines.comfyui import tuning as tuning_module
from omnireuse_engines.comfyui.calls import sampler_name
from omnireuse_engines.comfyui.solver import SCHEDULED, CallSigmas

pytestmark = IN_COMFYUI

STEPS, COMPUTED = 20, 12
FITTED = ("euler", "dpmpp_2m", "uni_pc", "deis", "res_multistep", "gradient_estimation")


@pytest.fixture(autouse=True)
def tuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock
    tuning_module.registry_in.cache_clear()
    yield
    tuning_module.registry_in.cache_clear()


def state(model: Any) -> Any:
    return reuse_of(model).summary().tuning


class Pictures:
    """Captions of the small Flux with noise of their own."""

    def __init__(self, host: ModuleType, shapes: Any) -> None:
        self._host, self._shapes = host, shapes
        self._captions = shapes.captions(12, seed=5)

    def make(self, model: Any, number: int, sampler: str = "euler", **options: Any) -> torch.Tensor:
        positive = self._shapes.encode(self._captions[number])
        given = {"positive": positive, "negative": self._shapes.encode(""), "seed": number, **options}
        return self._host.sample(model, sampler, steps=STEPS, **given)


@pytest.fixture
def pictures(host: ModuleType, shapes: Any) -> Pictures:
    return Pictures(host, shapes)


@pytest.mark.parametrize("sampler", FITTED)
def test_samplers_that_can_be_fitted_are_tuned(
    counted: Any, loaded: Any, nodes: dict[str, Any], pictures: Pictures, sampler: str
) -> None:
    model, counter = counted
    (patched,) = nodes["Omnireuse"]().patch(model, 0.0, 0.0)
    for number in range(3):
        assert torch.equal(pictures.make(patched, number, sampler), pictures.make(loaded, number, sampler))
    assert state(patched).state == "ready"
    counter.sigmas.clear()
    assert pictures.make(patched, 3, sampler).isfinite().all()
    assert len(counter.sigmas) == COMPUTED


def test_a_model_with_another_lora_is_measured_anew(loaded: Any, nodes: dict[str, Any], pictures: Pictures) -> None:
    model = loaded.clone()
    for number in range(3):
        (patched,) = nodes["Omnireuse"]().patch(model, 0.0, 0.0)
        pictures.make(patched, number)
    assert state(patched).state == "ready"
    name = "diffusion_model.final_layer.linear.weight"
    changed = model.clone()
    changed.add_patches({name: (torch.full_like(model.model.state_dict()[name], 1e-3),)}, 1.0)
    (other,) = nodes["Omnireuse"]().patch(changed, 0.0, 0.0)
    pictures.make(other, 0)
    assert (state(other).state, state(other).pictures) == ("measuring", 1)
    # The weights hold the LoRA now, and the model without it is still known.
    (again,) = nodes["Omnireuse"]().patch(model, 0.0, 0.0)
    pictures.make(again, 4)
    assert state(again).state == "ready"


def test_the_sigmas_of_calls_are_those_that_samplers_are_known_by(host: ModuleType, counted: Any) -> None:
    """For every sampler of ComfyUI, in two runs with other conditions and noise."""
    model, counter = counted
    schedule = host.comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "simple", 6)
    for name in host.comfy.samplers.SAMPLER_NAMES:
        seen = []
        for seed in (0, 1):
            counter.sigmas.clear()
            host.sample(model, name, sigmas=schedule, seed=seed, positive=host.condition(5 + seed))
            seen.append(list(counter.sigmas))
        sampler = host.comfy.samplers.sampler_object(name)
        is_scheduled = sampler_name(sampler) in SCHEDULED
        assert is_scheduled == (seen[0] == seen[1]) == (name != "dpm_adaptive"), name
        known = CallSigmas().known(sampler, schedule.tolist(), model)
        assert (known is not None) == is_scheduled, name
        assert known is None or seen[0] == pytest.approx(known, rel=1e-5), name
