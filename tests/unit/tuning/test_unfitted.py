"""Solvers that no weights can be fitted for: schedules and forecasters are compared all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, DPMSolverMultistepScheduler

import omnireuse
from omnireuse import Profile
from omnireuse.tuning.budget import JUDGED
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import stable_diffusion as tiny_sd
from tests.unit.diffusion.test_coexistence import stable_diffusion_control

STEPS = 16
SCHEDULERS = [
    pytest.param(lambda: DDIMScheduler(clip_sample=True, clip_sample_range=2.0), id="DDIM, clipped"),
    pytest.param(lambda: DDIMScheduler(clip_sample=False, thresholding=True), id="DDIM, thresholding"),
    pytest.param(lambda: DDPMScheduler(clip_sample=True), id="DDPM, clipped", marks=pytest.mark.sweep),
    pytest.param(
        lambda: DPMSolverMultistepScheduler(thresholding=True), id="DPM++ 2M, thresholding", marks=pytest.mark.sweep
    ),
]


def bounded(scheduler: Any) -> Tiny:
    tiny = tiny_sd()
    tiny.pipe.scheduler = scheduler()
    return tiny


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_they_are_tuned(scheduler: Any, caplog: pytest.LogCaptureFixture) -> None:
    tiny = bounded(scheduler)
    full = [tiny.run(steps=STEPS, seed=seed) for seed in range(4)]
    with omnireuse.enable(tiny.pipe, computed_steps=8) as handle:
        made = [tiny.run(steps=STEPS, seed=seed) for seed in range(4)]
        assert handle.tuning.state == "ready", handle.tuning
        assert handle.tuning.pictures == 3
        assert len({event.step for event in handle.events if event.run == 4 and not event.reused}) == 8
    assert all(torch.equal(a, b) for a, b in zip(made[:3], full, strict=False))
    assert "Error" not in caplog.text


def test_a_plan_without_weights_is_kept_and_followed(cache: Path) -> None:
    """A solver whose untuned default is bad enough for another forecaster."""
    tiny = bounded(lambda: DDIMScheduler(clip_sample=True, clip_sample_range=0.5))
    with omnireuse.enable(tiny.pipe, computed_steps=5) as handle:
        for seed in range(3):
            tiny.run(steps=STEPS, seed=seed)
        assert "computed," in handle.tuning.reason, handle.tuning
        later = tiny.run(steps=STEPS, seed=5)
        path = handle.tuning.path
    assert path is not None
    (plan,) = Profile.load(path).plans.values()
    assert not plan.weights
    again = bounded(lambda: DDIMScheduler(clip_sample=True, clip_sample_range=0.5))
    with omnireuse.enable(again.pipe, computed_steps=5) as handle:
        assert torch.equal(again.run(steps=STEPS, seed=5), later)
        assert handle.tuning.state == "ready"
    with omnireuse.enable(again.pipe, computed_steps=5, tune=False):
        assert not torch.equal(again.run(steps=STEPS, seed=5), later)


def test_a_tolerance_is_tuned_for_them() -> None:
    tiny = bounded(lambda: DDIMScheduler(clip_sample=True, clip_sample_range=2.0))
    with omnireuse.enable(tiny.pipe, tolerance=0.3) as handle:
        for seed in range(JUDGED):
            tiny.run(steps=STEPS, seed=seed)
        assert handle.tuning.state == "ready", handle.tuning


def test_a_plan_of_runs_whose_controlnet_ends_serves_as_it_was_tried(caplog: pytest.LogCaptureFixture) -> None:
    tiny, call = stable_diffusion_control(), {"controlnet_conditioning_scale": 1.0, "control_guidance_end": 0.5}
    full = tiny.run(steps=20, **call)
    with omnireuse.enable(tiny.pipe, speedup=1.5) as handle:
        for seed in range(3):
            tiny.run(steps=20, seed=seed, **call)
        assert handle.tuning.state == "ready"
        served = tiny.run(steps=20, **call)
        profile = handle.tuned_profile
    assert profile is not None
    (plan,) = profile.plans.values()
    assert plan.evidence is not None
    error = (served - full).abs().mean() / full.abs().mean()
    assert plan.evidence.errors[0] == pytest.approx(error.item(), rel=1e-4)
    assert "the weights were fitted" not in caplog.text
