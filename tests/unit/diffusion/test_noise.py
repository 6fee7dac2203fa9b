"""The algebra between output and denoised sample, against what the schedulers themselves say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from diffusers.schedulers.scheduling_utils import SchedulerMixin

from omnireuse.noise.schedulers import noise_levels

COMMON = ("epsilon", "v_prediction")
CASES: list[tuple[type, str]] = [
    *((make, kind) for make in (DDIMScheduler, DDPMScheduler, EulerDiscreteScheduler) for kind in COMMON),
    (DDIMScheduler, "sample"),
    (DDPMScheduler, "sample"),
    (EulerDiscreteScheduler, "sample"),
    (EulerAncestralDiscreteScheduler, "epsilon"),
    (EulerAncestralDiscreteScheduler, "v_prediction"),
    *((make, kind) for make in (DPMSolverMultistepScheduler, UniPCMultistepScheduler)
      for kind in ("epsilon", "v_prediction", "sample", "flow_prediction")),
]  # fmt: skip


def own_x0(scheduler: Any, step: int, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    if hasattr(scheduler, "convert_model_output"):
        scheduler._step_index = step
        return scheduler.convert_model_output(output, sample=sample)
    return scheduler.step(output, scheduler.timesteps[step], sample).pred_original_sample


@pytest.mark.parametrize(("make", "prediction"), CASES)
def test_x0_is_what_the_scheduler_itself_predicts(make: type, prediction: str) -> None:
    options: dict[str, Any] = {"prediction_type": prediction}
    if prediction == "flow_prediction":
        options |= {"use_flow_sigmas": True}
    if make in (DDIMScheduler, DDPMScheduler):
        options |= {"clip_sample": False}
    torch.manual_seed(0)
    for step in (0, 4, 8):
        scheduler = make(**options)
        scheduler.set_timesteps(10)
        sample, output = torch.randn(1, 4, 4, 4), torch.randn(1, 4, 4, 4)
        if hasattr(scheduler, "scale_model_input"):
            scaled = scheduler.scale_model_input(sample, scheduler.timesteps[step])
            level = noise_levels(scheduler)[step]
            torch.testing.assert_close(scaled, sample * level.input_scale, rtol=1e-4, atol=1e-5)
        level = noise_levels(scheduler)[step]
        expected = own_x0(scheduler, step, output, sample)
        assert level.can_denoise(sample, output)
        torch.testing.assert_close(level.value_of(sample, output), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("make", "prediction"), CASES)
def test_the_output_is_won_back(make: type, prediction: str) -> None:
    scheduler = make(prediction_type=prediction, **({"use_flow_sigmas": True} if "flow" in prediction else {}))
    scheduler.set_timesteps(10)
    torch.manual_seed(0)
    sample, output = torch.randn(1, 4, 4, 4), torch.randn(1, 4, 4, 4)
    for level in noise_levels(scheduler)[:9]:
        x0 = level.value_of(sample, output)
        torch.testing.assert_close(level.output_of(sample, x0, output.dtype), output, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("make", "prediction"), CASES)
def test_the_coordinate_falls_from_noise_to_data(make: type, prediction: str) -> None:
    scheduler = make(prediction_type=prediction, **({"use_flow_sigmas": True} if "flow" in prediction else {}))
    scheduler.set_timesteps(12)
    at = [level.coordinate for level in noise_levels(scheduler)]
    assert len(at) == 12
    assert all(0 <= b < a <= 1 for a, b in pairwise(at))


def test_flow_matching_is_its_own_coordinate() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=[1.0, 0.6, 0.3])
    levels = noise_levels(scheduler)
    assert [level.coordinate for level in levels] == pytest.approx([1.0, 0.6, 0.3])
    assert [level.sigma for level in levels] == pytest.approx([1.0, 0.6, 0.3])
    assert [level.output_weight for level in levels] == pytest.approx([-1.0, -0.6, -0.3])


def test_a_subclass_of_a_known_scheduler_is_known() -> None:
    class Mine(FlowMatchEulerDiscreteScheduler):
        pass

    scheduler = Mine()
    scheduler.set_timesteps(4)
    assert noise_levels(scheduler)[0].sample_weight == 1.0


def test_an_unknown_scheduler_counts_steps_and_denoises_nothing() -> None:
    class Unheard(SchedulerMixin):
        timesteps = torch.tensor([3, 2, 1])

    levels = noise_levels(Unheard())
    assert [level.coordinate for level in levels] == [0, 1, 2]
    assert not levels[0].can_denoise(torch.zeros(1), torch.zeros(1))
