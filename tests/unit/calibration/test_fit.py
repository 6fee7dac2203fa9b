"""Fitted weights: the output that leads back is the right one, and the least squares are."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

import omnireuse
from omnireuse.diffusion.calibration.fit import PRIOR, WeightFit
from omnireuse.diffusion.calibration.path import Path, recorded_path
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.errors import UnsupportedModelError
from tests.helpers.tiny import flux as tiny_flux

SCHEDULERS = [
    FlowMatchEulerDiscreteScheduler(),
    EulerDiscreteScheduler(),
    EulerAncestralDiscreteScheduler(),
    DDIMScheduler(clip_sample=False),
    DPMSolverMultistepScheduler(),
    UniPCMultistepScheduler(),
]


def noise(seed: int) -> torch.Tensor:
    return torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


def sample(scheduler: Any, outputs: list[torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    scheduler.set_timesteps(len(outputs))
    latents = noise(0)
    for output, timestep in zip(outputs, scheduler.timesteps, strict=True):
        extra = {} if isinstance(scheduler, (UniPCMultistepScheduler,)) else {"generator": generator}
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(latents, timestep)
        latents = scheduler.step(output, timestep, latents, **extra, return_dict=False)[0]
    return latents


def alone(scheduler: Any) -> SimpleNamespace:
    """A pipeline of which only the scheduler is asked."""
    return SimpleNamespace(scheduler=scheduler, transformer=torch.nn.Identity())


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda each: type(each).__name__)
def test_one_reused_step_of_one_weight_leads_back_as_far_as_it_can(scheduler: Any) -> None:
    outputs = [noise(step) for step in range(1, 6)]
    # The third output is the second one scaled, so a single weight can win it back whole.
    outputs[2] = 0.7 * outputs[1]
    with recorded_path(alone(scheduler)) as path:
        full = sample(scheduler, outputs, torch.Generator().manual_seed(9))
    assert len(path.latents) == 6
    assert torch.equal(path.latents[-1], full)
    fit = WeightFit((0, 1, 3, 4), 5, kept=1)
    lost = [*outputs]
    lost[2] = torch.zeros_like(lost[2])
    with fit.led_along(path, alone(scheduler)):
        again = sample(scheduler, lost, torch.Generator().manual_seed(9))
    assert fit.weights[0][2] == pytest.approx((0.7,), abs=2e-3)
    torch.testing.assert_close(again, full, rtol=1e-2, atol=1e-2)


def test_the_weights_of_one_sample_are_its_least_squares_with_a_prior_of_its_error() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler()
    outputs = [noise(step)[:1] for step in range(1, 5)]

    def run() -> torch.Tensor:
        scheduler.set_timesteps(4)
        latents = noise(0)[:1]
        for output, timestep in zip(outputs, scheduler.timesteps, strict=True):
            latents = scheduler.step(output, timestep, latents, return_dict=False)[0]
        return latents

    with recorded_path(alone(scheduler)) as path:
        run()
    fit = WeightFit((0, 1, 3), 4)
    with fit.led_along(path, alone(scheduler)):
        run()
    newest, older, true = (outputs[number].flatten().double().numpy() for number in (1, 0, 2))
    basis, left, error = np.stack([newest, older - newest], axis=1), true - newest, 0.0
    for _ in range(50):
        found = np.linalg.solve(basis.T @ basis + PRIOR * error * np.eye(2), basis.T @ left)
        error = np.square(left - basis @ found).sum()
    expected = (1 + found[0] - found[1], found[1])
    ((*before, weights, corrected),) = fit.weights
    assert weights == pytest.approx(expected, abs=2e-2)
    assert before == [(), ()]
    # What step 2 got wrong is in the next step's aim: it is led to the full run's latents, not to its own output.
    assert len(corrected) == 3
    assert corrected != pytest.approx((1.0, 0.0, 0.0), abs=1e-3)


def test_weights_come_closer_to_the_full_run_than_holding_and_judge_as_they_were_fitted() -> None:
    tiny = tiny_flux()
    computed = (0, 1, 2, 4, 6)
    with recorded_path(tiny.pipe) as path, omnireuse.enable(tiny.pipe, policy="never"):
        full = tiny.run(steps=8)
    policy = FixedSchedule(steps=computed, compute_last=False)
    fit = WeightFit(computed, 8)
    with (
        fit.led_along(path, tiny.pipe),
        omnireuse.enable(tiny.pipe, policy=policy, quantity="output"),
    ):
        led = tiny.run(steps=8)
    with omnireuse.enable(tiny.pipe, policy=policy, quantity="output"):
        held = tiny.run(steps=8)
    assert (led - full).norm() < (held - full).norm()
    at = tuple(tiny.pipe.scheduler.sigmas[:-1].tolist())
    fitted = omnireuse.Fitted(coordinates=at, weights=fit.weights, computed=computed)
    # Its guidance calls two branches, so that weights are of calls.
    assert fitted.branches == 2
    with omnireuse.enable(tiny.pipe, policy=policy, forecaster=fitted, region="call"):
        torch.testing.assert_close(tiny.run(steps=8), led, rtol=1e-4, atol=1e-4)


def test_a_scheduler_that_bends_outputs_cannot_be_fitted(caplog: pytest.LogCaptureFixture) -> None:
    class Bending(FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
        def step(self, model_output: Any, timestep: Any, sample: Any, **kwargs: Any) -> Any:
            return super().step(model_output * sample.abs(), timestep, sample, **kwargs)

    scheduler = Bending()
    with recorded_path(alone(scheduler)) as path, caplog.at_level(logging.WARNING, "omnireuse"):
        sample(scheduler, [noise(step) for step in range(1, 5)], torch.Generator())
    assert path.latents == []
    assert caplog.text.count("no weights can be fitted") == 1
    with (
        WeightFit((0, 1, 3), 4).led_along(Path(latents=[noise(0)] * 5), alone(scheduler)),
        pytest.raises(UnsupportedModelError, match="Bending: no weights can be fitted"),
    ):
        sample(scheduler, [noise(step) for step in range(1, 5)], torch.Generator())


def test_a_fit_does_not_call_the_denoiser_before_the_first_gap() -> None:
    tiny = tiny_flux()
    calls: list[int] = []
    with recorded_path(tiny.pipe, calls_of=3) as path, omnireuse.enable(tiny.pipe, policy="never"):
        tiny.run(steps=8)
    tiny.pipe.transformer.register_forward_hook(lambda *_: calls.append(1))
    made = []
    for steps in (0, 3):
        calls.clear()
        fit = WeightFit((0, 1, 2, 3, 6), 8)
        known = Path(latents=path.latents, shares=path.shares, calls=path.calls[:steps])
        with (
            fit.led_along(known, tiny.pipe),
            omnireuse.enable(tiny.pipe, policy=FixedSchedule(steps=(0, 1, 2, 3, 6), compute_last=False)),
        ):
            made.append(tiny.run(steps=8))
        assert len(calls) == 2 * (5 - steps), "two branches a step"
    torch.testing.assert_close(made[0], made[1], rtol=0, atol=0)
