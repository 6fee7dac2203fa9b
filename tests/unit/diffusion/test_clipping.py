"""Where a solver without noise of its own bounds x0 in its step, the raw output is forecast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, DPMSolverMultistepScheduler

import omnireuse
from omnireuse.noise.schedulers import noise_levels
from tests.helpers.tiny import TINY

DEFAULT = omnireuse.Strategy.default()


def _name(value: Any) -> str:
    return value if isinstance(value, str) else type(value).__name__


BOUNDING = [
    DDIMScheduler(clip_sample=True),
    DDIMScheduler(clip_sample=False, thresholding=True),
    DPMSolverMultistepScheduler(thresholding=True),
]
OTHERS = [
    (DDIMScheduler(clip_sample=False), "velocity"),
    (DDIMScheduler(clip_sample=True, prediction_type="sample"), "velocity"),
    (DPMSolverMultistepScheduler(), "velocity"),
    (DDPMScheduler(clip_sample=True), "x0"),
    (DDPMScheduler(clip_sample=False, thresholding=True), "x0"),
]


def target_of(scheduler: Any, strategy: omnireuse.Strategy = DEFAULT) -> str:
    scheduler.set_timesteps(28)
    return strategy.for_run(28, noise_levels(scheduler)).target


@pytest.mark.parametrize("scheduler", BOUNDING, ids=_name)
def test_the_output_is_forecast_where_x0_is_bounded(scheduler: Any) -> None:
    assert target_of(scheduler) == "output"


@pytest.mark.parametrize(("scheduler", "target"), OTHERS, ids=_name)
def test_others_keep_their_target(scheduler: Any, target: str) -> None:
    assert target_of(scheduler) == target


def test_a_target_that_is_asked_for_is_taken() -> None:
    asked = omnireuse.Strategy(policy=DEFAULT.policy, forecaster=omnireuse.Blend(), prediction_target="x0")
    assert target_of(BOUNDING[0], asked) == "x0"


def test_a_picture_equals_that_of_the_output_asked_for() -> None:
    tiny = TINY["stable_diffusion"]()
    tiny.pipe.scheduler = DDIMScheduler(clip_sample=True)
    with omnireuse.enable(tiny.pipe, tune=False):
        made = tiny.run(steps=28)
    with omnireuse.enable(tiny.pipe, policy=DEFAULT.policy, forecaster="blend", prediction_target="output"):
        assert torch.equal(tiny.run(steps=28), made)
