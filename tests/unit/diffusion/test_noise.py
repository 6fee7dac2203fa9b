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

import omnireuse
from omnireuse.errors import UnsupportedModelError
from omnireuse.noise.parametrization import NoiseLevel, Parametrization
from omnireuse.noise.schedulers import noise_levels
from omnireuse.noise.signals import filtered, grid_of
from tests.helpers.tiny import TINY

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
        algebra = Parametrization("x0", is_required=True)
        algebra.settle(level, sample, output)
        (again,) = algebra.outputs(level.factors("x0"), [sample], [x0], [output.dtype])
        torch.testing.assert_close(again, output, rtol=1e-2, atol=1e-3)


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


# -- the latents as seen through the noise -----------------------------------------------------------------------------


def level(at: float) -> NoiseLevel:
    return NoiseLevel(sigma=at, coordinate=at, sample_weight=1.0, output_weight=-at)


def test_the_filter_is_the_optimal_linear_denoiser() -> None:
    latents = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = 0.7, 0.3
    f = torch.sqrt(torch.fft.fftfreq(8).double()[:, None] ** 2 + torch.fft.fftfreq(6).double()[None] ** 2)
    gain = torch.where(f > 0, a * f**-2 / (a**2 * f**-2 + b**2), 1 / a)
    expected = torch.fft.ifftn(torch.fft.fftn(latents, dim=(2, 3)) * gain / gain.mean(), dim=(2, 3)).real
    torch.testing.assert_close(filtered(latents, level(b).noise, None).double(), expected, rtol=1e-4, atol=1e-5)


def test_noise_hides_fine_detail_early_and_not_late() -> None:
    stripes = torch.tensor([1.0, -1.0]).repeat(8).expand(1, 1, 16, 16)
    weights = [filtered(stripes, level(at).noise, None).abs().max().item() for at in (1.0, 0.9, 0.5, 0.1, 0.0)]
    assert weights == sorted(weights)
    assert weights[0] < 0.01
    assert weights[-1] == pytest.approx(1.0, abs=1e-3)


def test_packed_latents_are_unfolded() -> None:
    latents = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(1))
    packed = latents.flatten(2).transpose(1, 2)
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(6), indexing="ij")
    ids = torch.stack((torch.zeros(24), rows.flatten(), columns.flatten()), 1)
    for kwargs in (
        {"img_ids": ids},
        {"img_ids": ids.expand(2, -1, -1)},
        {"img_shapes": [[(1, 4, 6)]] * 2},
        {"img_shapes": [(1, 4, 6)]},
        {"height": 4, "width": 6},
    ):
        grid = grid_of(packed, kwargs)
        assert grid == (4, 6)
        torch.testing.assert_close(filtered(packed, level(0.4).noise, grid), filtered(latents, level(0.4).noise, None))
    assert grid_of(torch.zeros(1, 48, 3), {"num_frames": 2, "height": 4, "width": 6}) == (2, 4, 6)
    assert grid_of(latents, {}) is None


def test_what_the_filter_cannot_know_is_an_error() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot tell rows and columns"):
        grid_of(torch.zeros(1, 24, 3), {"height": 5, "width": 5})
    with pytest.raises(UnsupportedModelError, match="needs the noise of the scheduler"):
        filtered(torch.zeros(1, 3, 4, 4), NoiseLevel(sigma=None, coordinate=3.0).noise, None)


# -- solvers that bound x0 ---------------------------------------------------------------------------------------------


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
