"""The mistakes of a first day are told in words of what was given, with what to do."""

from __future__ import annotations

import copy
import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline

import omnireuse
from omnireuse.errors import ConfigError, StateError, WrongTypeError
from tests import TOP
from tests.helpers.tiny import Tiny

PROFILES = TOP / "models/shapes-flux/profiles"


@pytest.mark.parametrize(("given", "named"), [(FluxPipeline, "got the class FluxPipeline"), (None, "got None")])
def test_a_class_and_none_are_no_loaded_pipeline(given: Any, named: str) -> None:
    for function in (omnireuse.enable, omnireuse.disable):
        with pytest.raises(WrongTypeError, match=rf"{named}; pass a loaded pipeline, as FluxPipeline\.from_pretrained"):
            function(given)


@pytest.mark.parametrize("given", [{}, {"backend": "error_control"}, {"policy": "fixed"}], ids=str)
def test_a_group_is_a_process_group(flux: Tiny, given: Any) -> None:
    with pytest.raises(WrongTypeError, match=r"enable\(group=3\): group must be a torch\.distributed process group"):
        omnireuse.enable(flux.pipe, **given, group=3)


@pytest.mark.parametrize("steps", [0, -3, 2.5, "28", True])
def test_the_number_of_expected_steps_is_a_whole_number(flux: Tiny, steps: Any) -> None:
    handle = omnireuse.enable(flux.pipe, policy="fixed")
    with pytest.raises(ConfigError, match="num_inference_steps must be a whole number ≥ 1 or None, got"):
        handle.expect(steps)


def test_a_run_of_one_step_is_not_told_to_take_fewer(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(flux.pipe, policy="fixed"):
        flux.run(steps=1)
    assert "a run of 1 step leaves none out with these settings; it needs no reuse" in caplog.text


def test_latents_that_a_callback_breaks_are_not_laid_on_the_forecaster_alone(flux: Tiny) -> None:
    def broken(pipe: Any, step: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        return {"latents": given["latents"] * torch.nan}

    omnireuse.enable(flux.pipe, policy="fixed")
    with pytest.raises(StateError, match="from step 1 on, which Hold forecast, unless a callback changed them there"):
        flux.run(callback_on_step_end=broken)


@pytest.mark.parametrize("made", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_handle_is_not_copied_and_its_summary_is_pickled(flux: Tiny, made: Any) -> None:
    with omnireuse.enable(flux.pipe, policy="fixed") as handle:
        flux.run()
        with pytest.raises(WrongTypeError, match=r"a Handle .* cannot be copied or pickled; call omnireuse\.enable"):
            made(handle)
    assert pickle.loads(pickle.dumps(handle.summary())) == handle.summary()


def test_the_profile_of_another_model_names_both(flux: Tiny) -> None:
    with pytest.raises(StateError, match=r"calibrate this pipeline, a FluxPipeline \(the profile is of shapes-flux\)"):
        omnireuse.enable(flux.pipe, profile=PROFILES / "shapes-flux-28-unguided.json")


def test_a_folder_of_several_profiles_lists_them(flux: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write one with Profile\.save"):
        omnireuse.enable(flux.pipe, profile=tmp_path)
    for each in sorted(PROFILES.glob("*.json")):
        shutil.copy(each, tmp_path)
    with pytest.raises(ConfigError, match=r"it has shapes-flux-28-guided\.json, .*: give one of them, such as"):
        omnireuse.enable(flux.pipe, profile=tmp_path)


def test_prompts_need_a_text_encoder(flux: Tiny) -> None:
    with pytest.raises(ConfigError, match="FluxPipeline: text_encoder must be there to draw prompts, got None; load"):
        omnireuse.calibrate(flux.pipe, [f"prompt {number}" for number in range(18)], steps=8, progress=False)


def test_more_computed_steps_than_the_run_has(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(flux.pipe, computed_steps=40):
        flux.run(steps=24)
        flux.run(steps=24)
    (message,) = (each.getMessage() for each in caplog.records if each.name == "omnireuse")
    assert message == (
        "40 computed steps are asked for and the run has 24, so all are computed; ask for fewer to reuse some"
    )
