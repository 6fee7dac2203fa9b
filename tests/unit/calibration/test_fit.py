"""Fitted weights: the output that leads back is the right one, and the least squares are."""

from __future__ import annotations

from dataclasses import replace
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
from omnireuse.errors import UnsupportedModelError
from omnireuse.planning.fit import PRIOR, WeightFit
from omnireuse.policies import Steps
from tests.helpers.full_runs import Loop, fit_along, recorded
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


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda each: type(each).__name__)
def test_one_reused_step_of_one_weight_leads_back_as_far_as_it_can(scheduler: Any) -> None:
    outputs = [noise(step) for step in range(1, 6)]
    # The third output is the second one scaled, so a single weight can win it back whole.
    outputs[2] = 0.7 * outputs[1]
    loop = Loop(scheduler, outputs, noise(0))

    def run() -> torch.Tensor:
        extra = {"generator": torch.Generator().manual_seed(9)}
        return loop(**({} if isinstance(scheduler, UniPCMultistepScheduler) else extra))

    full, latents = recorded(loop, run, 5)
    assert len(full.path.latents) == 6
    assert torch.equal(full.final, latents)
    fit = WeightFit((0, 1, 3, 4), 5, kept=1)
    again = fit_along(loop, run, fit, full)
    assert fit.weights[0][2] == pytest.approx((0.7,), abs=2e-3)
    torch.testing.assert_close(again, latents, rtol=1e-2, atol=1e-2)


def test_the_weights_of_one_sample_are_its_least_squares_with_a_prior_of_its_error() -> None:
    outputs = [noise(step)[:1] for step in range(1, 5)]
    loop = Loop(FlowMatchEulerDiscreteScheduler(), outputs, noise(0)[:1])
    full, _ = recorded(loop, loop, 4)
    fit = WeightFit((0, 1, 3), 4)
    fit_along(loop, loop, fit, full)
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
    full, latents = recorded(tiny.pipe, lambda: tiny.run(steps=8), 8)
    fit = WeightFit(computed, 8)
    made = fit_along(tiny.pipe, lambda: tiny.run(steps=8), fit, full)
    policy = Steps(steps=computed, compute_last=False)
    with omnireuse.enable(tiny.pipe, policy=policy, prediction_target="output"):
        held = tiny.run(steps=8)
    assert (made - latents).norm() < (held - latents).norm()
    at = tuple(tiny.pipe.scheduler.sigmas[:-1].tolist())
    fitted = omnireuse.Fitted(coordinates=at, weights=fit.weights, computed=computed)
    # Its guidance calls two branches, so that weights are of calls.
    assert fitted.branches == 2
    with omnireuse.enable(tiny.pipe, policy=policy, forecaster=fitted, region="call"):
        torch.testing.assert_close(tiny.run(steps=8), made, rtol=1e-4, atol=1e-4)


def test_a_scheduler_that_bends_outputs_cannot_be_fitted() -> None:
    class Bending(FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
        def step(self, model_output: Any, timestep: Any, sample: Any, **kwargs: Any) -> Any:
            return super().step(model_output * sample.abs(), timestep, sample, **kwargs)

    outputs = [noise(step) for step in range(1, 5)]
    bending = Loop(Bending(), outputs, noise(0))
    full, _ = recorded(bending, bending, 4)
    assert "Bending: no weights can be fitted" in str(full.unfit)
    straight = Loop(FlowMatchEulerDiscreteScheduler(), outputs, noise(0))
    full, _ = recorded(straight, straight, 4)
    with pytest.raises(UnsupportedModelError, match="Bending: no weights can be fitted"):
        fit_along(bending, bending, WeightFit((0, 1, 3), 4), full)


def test_a_fit_does_not_call_the_denoiser_before_the_first_gap() -> None:
    tiny, computed = tiny_flux(), (0, 1, 2, 3, 6)
    calls: list[int] = []
    full, _ = recorded(tiny.pipe, lambda: tiny.run(steps=8), 8)
    tiny.pipe.transformer.register_forward_hook(lambda *_: calls.append(1))
    made = []
    for steps in (0, 3):
        calls.clear()
        known = replace(full, path=replace(full.path, calls=full.path.calls[:steps]))
        made.append(fit_along(tiny.pipe, lambda: tiny.run(steps=8), WeightFit(computed, 8), known))
        assert len(calls) == 2 * (5 - steps), "two branches a step"
    torch.testing.assert_close(made[0], made[1], rtol=0, atol=0)


@pytest.mark.parametrize("guided", [(0, 1, 2), (2, 3, 4, 5)], ids=["ends", "begins"])
def test_a_run_whose_guidance_changes_on_the_way_is_fitted_with_one_set_of_weights(guided: tuple[int, ...]) -> None:
    # Each output is the first one scaled, so that one set of weights can win all of them back.
    outputs = [(1 + 0.1 * step) * noise(1) for step in range(6)]
    made = [(output, output) if step in guided else output for step, output in enumerate(outputs)]
    loop = Loop(FlowMatchEulerDiscreteScheduler(), made, noise(0))
    full, latents = recorded(loop, loop, 6)
    assert full.path.shares == (1.0,)
    assert full.calls == 2
    fit = WeightFit((0, 1, 3, 5), 6)
    torch.testing.assert_close(fit_along(loop, loop, fit, full), latents, rtol=1e-2, atol=1e-2)
    assert len(fit.weights) == 1
