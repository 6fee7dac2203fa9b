"""Reuse inside ComfyUI's own samplers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from engines.tests.hosts.comfyui.conftest import IN_COMFYUI
from omnireuse_engines.comfyui import attach, plan_for, reuse_of

pytestmark = IN_COMFYUI

ONE_CALL = ("euler", "dpmpp_2m", "euler_ancestral", "lms", "res_multistep", "er_sde", "lcm")
TWO_CALLS = ("heun", "dpm_2", "dpmpp_2s_ancestral", "dpmpp_sde")
CFG_PP = (
    *("euler_cfg_pp", "euler_ancestral_cfg_pp", "dpmpp_2s_ancestral_cfg_pp", "dpmpp_2m_cfg_pp"),
    *("res_multistep_cfg_pp", "res_multistep_ancestral_cfg_pp", "gradient_estimation_cfg_pp"),
)
COMPUTED = {0, 1, 2, 3, 4, 6, 8, 11, 14, 18}
"""The steps that speedup 2 computes of the 20 of the simple scheduler."""
COMPUTED_TO_THE_LAST = {0, 1, 2, 3, 5, 7, 9, 12, 15, 19}


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def strip(model: Any) -> list[float | None]:
    return list(reuse_of(model).summary().last_run)


@pytest.mark.parametrize("sampler", ONE_CALL)
def test_the_planned_steps_are_computed(host: ModuleType, counted: Any, sampler: str) -> None:
    model, counter = counted
    patched = attach(model, plan_for(speedup=2.0))
    full = host.sample(model, sampler)
    reused = host.sample(patched, sampler)
    assert len(counter.sigmas) == 20 + 10
    assert {step for step, share in enumerate(strip(patched)) if share} == COMPUTED
    assert reused.isfinite().all()
    assert 0 < relative(reused, full) < 1


@pytest.mark.parametrize("sampler", TWO_CALLS)
def test_all_calls_of_a_step_share_its_decision(host: ModuleType, counted: Any, sampler: str) -> None:
    model, counter = counted
    patched = attach(model, plan_for(speedup=2.0))
    # ComfyUI leaves out the last sigma but one for dpm_2, so that its last step has more noise.
    computed = COMPUTED_TO_THE_LAST if sampler == "dpm_2" else COMPUTED
    full = host.sample(model, sampler)
    calls = len(counter.sigmas)
    assert calls == 39
    reused = host.sample(patched, sampler)
    # Heun's second call is at the next step's sigma, and belongs to it. The last step of dpm_2 is one call.
    assert len(counter.sigmas) - calls == (19 if sampler in ("heun", "dpm_2") else 20)
    assert {step for step, share in enumerate(strip(patched)) if share == 1.0} == computed
    assert {step for step, share in enumerate(strip(patched)) if share == 0.0} == set(range(20)) - computed
    assert 0 < relative(reused, full) < 1


@pytest.mark.parametrize("sampler", CFG_PP)
@pytest.mark.parametrize("target", [{"speedup": 2.0}, {"tolerance": 0.5}])
def test_every_step_of_cfg_plus_plus_is_computed_and_said(
    host: ModuleType, model: Any, caplog: pytest.LogCaptureFixture, sampler: str, target: dict[str, float]
) -> None:
    patched = attach(model, plan_for(**target))
    for seed in (0, 1):
        full = host.sample(model, sampler, cfg=1.5, seed=seed)
        assert torch.equal(host.sample(patched, sampler, cfg=1.5, seed=seed), full)
    assert strip(patched) == [1.0] * 20
    assert caplog.text.count("computes every step of this sampler, which steps from a part of guidance") == 1
    assert "nothing was reused" not in caplog.text
    assert reuse_of(patched).summary().fallbacks == {"full runs": 2}


@pytest.mark.parametrize("sampler", [*ONE_CALL[:3], *TWO_CALLS, *CFG_PP[:1], "seeds_2", "sa_solver_pece"])
def test_a_plan_of_all_steps_is_bit_equal(host: ModuleType, model: Any, sampler: str) -> None:
    patched = attach(model, plan_for(speedup=1.0))
    assert torch.equal(host.sample(patched, sampler, steps=5), host.sample(model, sampler, steps=5))


@pytest.mark.parametrize("sampler", ["dpm_fast", "dpm_adaptive"])
def test_a_sampler_that_chooses_its_own_sigmas_is_served(host: ModuleType, counted: Any, sampler: str) -> None:
    model, counter = counted
    patched = attach(model, plan_for(speedup=2.0))
    full = host.sample(model, sampler)
    calls = len(counter.sigmas)
    reused = host.sample(patched, sampler)
    assert len(counter.sigmas) - calls < calls
    assert relative(reused, full) < 1


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpmpp_sde"])
def test_a_tolerance_is_met_with_more_or_fewer_steps(host: ModuleType, counted: Any, sampler: str) -> None:
    model, counter = counted
    host.sample(model, sampler, cfg=1.0)
    calls = [len(counter.sigmas)]
    for tolerance in (0.001, 0.8):
        before = len(counter.sigmas)
        host.sample(attach(model, plan_for(tolerance=tolerance)), sampler, cfg=1.0)
        calls.append(len(counter.sigmas) - before)
    assert calls[0] >= calls[1] > calls[2]


def test_a_batch_of_several_conditions_is_served(host: ModuleType, counted: Any) -> None:
    model, counter = counted
    positive = [*host.condition(1), *host.condition(3)]
    full = host.sample(model, positive=positive, batch=2)
    calls = len(counter.sigmas)
    reused = host.sample(attach(model, plan_for(speedup=2.0)), positive=positive, batch=2)
    assert (len(counter.sigmas) - calls) * 2 == calls
    assert relative(reused, full) < 1


def test_a_condition_that_ends_midway_is_computed_where_it_ends(host: ModuleType, model: Any) -> None:
    ending = [*host.condition(1), *host.condition(3, start_percent=0.0, end_percent=0.62)]
    patched = attach(model, plan_for(speedup=2.0))
    host.sample(patched, positive=ending)
    computed = {step for step, share in enumerate(strip(patched)) if share}
    sigmas = host.comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "simple", 20).tolist()
    end = model.get_model_object("model_sampling").percent_to_sigma(0.62)
    first_without = next(step for step, sigma in enumerate(sigmas) if sigma < end)
    assert first_without not in COMPUTED
    assert computed == COMPUTED | {first_without}


def test_image_to_image_begins_where_its_noise_does(host: ModuleType, counted: Any) -> None:
    model, counter = counted
    picture = host.sample(model)
    before = len(counter.sigmas)
    patched = attach(model, plan_for(speedup=2.0))
    edited = host.sample(patched, latent=picture, denoise=0.6)
    assert len(strip(patched)) == 20
    assert len(counter.sigmas) - before == 10
    assert max(counter.sigmas[before:]) < 0.7
    assert edited.isfinite().all()


@pytest.mark.parametrize("sampler", ["euler", "heun"])
def test_what_a_mask_keeps_stays_exactly(host: ModuleType, model: Any, sampler: str) -> None:
    picture = host.sample(model, steps=5)
    mask = torch.zeros(1, 1, 16, 16)
    mask[..., :8] = 1.0
    patched = attach(model, plan_for(speedup=2.0))
    options = {"latent": picture, "noise_mask": mask}
    full, reused = host.sample(model, sampler, **options), host.sample(patched, sampler, **options)
    assert 0.0 in strip(patched)
    # ComfyUI takes the picture through the model's latent space and back.
    torch.testing.assert_close(reused[..., 8:], picture[..., 8:], rtol=0, atol=1e-5)
    assert not torch.equal(reused[..., :8], full[..., :8])


def test_a_profile_for_both_parts_of_guidance_is_followed(host: ModuleType, counted: Any) -> None:
    from omnireuse_engines.comfyui import plan_of_profile

    model, counter = counted
    path = host.TOP / "models" / "shapes-flux" / "profiles" / "shapes-flux-28-guided.json"
    patched = attach(model, plan_of_profile(path))
    sigmas = torch.linspace(1, 0, 29)
    full = host.sample(model, steps=28, sigmas=sigmas)
    reused = host.sample(patched, steps=28, sigmas=sigmas)
    assert len(counter.sigmas) == 28 + 14
    assert relative(reused, full) < 0.5
    assert "not promised" in str(reuse_of(patched).summary())
    assert not reuse_of(patched).summary().fallbacks
    host.sample(patched)
    assert reuse_of(patched).summary().fallbacks == {"the default's plan": 1}
