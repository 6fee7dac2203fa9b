"""Pipelines with other arguments and results than those of diffusers are calibrated, end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import omnireuse
from omnireuse.errors import ConfigError, StateError, UnknownNameError
from tests.helpers.custom import Bare, Custom, InTuple, Noisy, Signed, unsigned

PROMPTS = ["a circle", "a square", "a cross", "a ring"]
KINDS: list[tuple[type[Any], dict[str, Any]]] = [
    (Bare, {}),
    (InTuple, {}),
    (Noisy, {}),
    (Signed, {"pictures": unsigned}),
]
FLUX = {"height": 64, "width": 64, "max_sequence_length": 20}


def calibrated(pipeline: Any, **given: Any) -> omnireuse.Profile:
    asked = {"steps": 6, "computed_steps": [3, 4], "progress": False}
    return omnireuse.calibrate(pipeline, PROMPTS, **{**asked, **given})


@pytest.mark.parametrize(("kind", "given"), KINDS)
def test_a_custom_pipeline_is_calibrated_and_its_profile_used(kind: type[Any], given: dict[str, Any]) -> None:
    pipeline = kind()
    profile = calibrated(pipeline, **given)
    assert sorted(profile.plans) == [3, 4]
    assert profile.model == "Denoiser"
    assert 20 < profile.plans[3].psnr < 100
    with omnireuse.enable(pipeline, profile=profile, computed_steps=3) as handle:
        pipeline(PROMPTS[0], num_inference_steps=6)
    assert handle.summary().computed_steps == 3


def test_all_custom_pipelines_make_the_same_pictures() -> None:
    # They differ in what they take and return alone.
    worth = [calibrated(kind(), **given).plans[3].psnr for kind, given in KINDS]
    assert worth == pytest.approx([worth[0]] * 4, abs=1e-4)


def test_only_arguments_that_the_call_takes_are_passed() -> None:
    pipeline = Bare()
    calibrated(pipeline, computed_steps=[3])
    assert {seen["steps"] for seen in pipeline.seen} == {6}
    assert all(isinstance(seen["generator"], torch.Generator) for seen in pipeline.seen)
    with pytest.raises(UnknownNameError, match="unknown argument of Bare 'height'"):
        calibrated(Bare(), height=16)


def test_a_pipeline_without_generator_leaves_the_seed_of_torch_alone() -> None:
    pipeline = Noisy()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    calibrated(pipeline, computed_steps=[3])
    assert torch.equal(torch.rand(3), expected)
    with pytest.raises(ConfigError, match=r"takes no generator.*batch_size must be 1, got 2"):
        calibrated(Noisy(), batch_size=2)


def test_values_that_are_not_safely_pictures_are_refused_at_the_first_run() -> None:
    pipeline = Signed()
    with pytest.raises(ConfigError, match=r"with values from -0\.\d+ to 0\.\d+ instead of 0…1; give pictures="):
        calibrated(pipeline)
    assert len(pipeline.seen) == 1
    omnireuse.enable(pipeline).disable()


class Latents(Bare):
    def _result(self, images: torch.Tensor) -> Any:
        return torch.cat([images, images[:, :1]], dim=1)


class Nothing(Bare):
    def _result(self, images: torch.Tensor) -> Any:
        return {"seconds": 1.0}


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (Latents, r"Tensor of shape \(1, 4, 16, 16\), which is not safely read as pictures; give pictures="),
        (Nothing, "dict with seconds, in which no pictures can be recognised; give pictures="),
    ],
)
def test_results_that_are_no_pictures_are_refused(kind: type[Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        calibrated(kind())


def test_a_pictures_function_that_returns_something_else_is_told() -> None:
    with pytest.raises(ConfigError, match="Signed: pictures= returned NoneType"):
        calibrated(Signed(), pictures=lambda _: None)


def test_a_pipeline_that_takes_no_prompt_is_told() -> None:
    class Unprompted(Custom):
        def __call__(self, label: int, num_inference_steps: int = 50) -> Any:
            return label

    with pytest.raises(ConfigError, match="Unprompted: its call must take prompt, but it takes label, num_inference"):
        calibrated(Unprompted())


def test_num_inference_steps_is_another_name_of_steps() -> None:
    one, other = calibrated(Bare()), calibrated(Bare(), steps=None, num_inference_steps=6)
    assert one == other


def test_a_modular_pipeline_is_calibrated(modular: Any, capfd: pytest.CaptureFixture[str]) -> None:
    profile = calibrated(modular, computed_steps=[3], **FLUX)
    assert profile.model == "FluxTransformer2DModel"
    assert 15 < profile.plans[3].psnr < 100
    assert "it/s" not in capfd.readouterr().err, "its own bar is off meanwhile"
    with pytest.raises(UnknownNameError, match="argument of FluxModularPipeline 'hight'; did you mean 'height'"):
        calibrated(modular, hight=64)


def test_a_full_run_that_is_not_finite_is_told_whatever_the_pipeline_returns() -> None:
    class Broken(Bare):
        def _result(self, images: torch.Tensor) -> Any:
            return images * np.nan

    with pytest.raises(StateError, match="the full run of 'a circle' is not finite"):
        calibrated(Broken())
