"""``omnireuse calibrate`` on pipelines from functions and hubs, on a device and in a dtype."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnireuse import Profile
from tests.helpers.sources import Run

SEARCH = ("--steps", "5", "--computed", "3")


def test_a_pipeline_from_a_function_is_calibrated_with_its_own_pictures(run: Run, tmp_path: Path) -> None:
    status, shown, said = run("calibrate", "--pipeline", "custom:make_signed", "--pictures", "custom:unsigned", *SEARCH)
    assert status == 0
    assert sorted(Profile.load(tmp_path / "out.json").plans) == [3]
    assert "Signed on cpu in float32; 5 steps, 3 prompts searched with, 1 held out" in said
    assert "none" in shown, "one held-out prompt promises nothing"
    assert "speedup=…)" in shown
    assert "quality=" not in shown


def test_a_pipeline_is_calibrated_in_the_dtype_that_was_asked_for(run: Run, tmp_path: Path) -> None:
    given = ("--pipeline", "custom:make_whole", "--dtype", "bfloat16", "--device", "cpu")
    status, _, said = run("calibrate", *given, *SEARCH)
    assert status == 0
    assert "Whole on cpu in bfloat16; 5 steps" in said
    assert Profile.load(tmp_path / "out.json").dtype == "bfloat16"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((), "MODEL, a folder or an id, or --pipeline must be given"),
        (("folder", "--pipeline", "custom:make_bare"), "MODEL, a folder or an id, and --pipeline cannot both be given"),
        (("--pipeline", "custom"), "must be PACKAGE:FUNCTION"),
        (("--pipeline", "custom:nothing"), "custom has no function 'nothing'"),
        (("--pipeline", "nowhere_at_all:make"), "there is no module 'nowhere_at_all'"),
        (("--pipeline", "custom:make_bare", "--pictures", "custom:nothing"), "(--pictures='custom:nothing')"),
        (("nobody/nothing-of-this-name",), "unset HF_HUB_OFFLINE"),
        (("nowhere",), "there is no such folder"),
        (("--pipeline", "custom:make_bare", "--dtype", "int8"), "unknown dtype 'int8'"),
        (("--pipeline", "custom:make_bare", "--device", "toaster"), "must be a device of this machine"),
        (("--pipeline", "custom:make_bare", "--call", '{"height": 8}'), "unknown argument of Bare 'height'"),
        (("--pipeline", "custom:make_bare", "--call", '{"output_type": 8}'), "output_type is set by"),
        (("--pipeline", "custom:make_signed"), "give pictures="),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], complaint: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    status, _, said = run("calibrate", *given)
    assert status == 2
    assert complaint in said


def test_the_call_takes_the_step_count_and_none_of_the_options(run: Run, tmp_path: Path) -> None:
    given = ("--pipeline", "custom:make_bare", "--computed", "3")
    assert run("calibrate", *given, "--call", '{"num_inference_steps": 5}')[0] == 0
    assert Profile.load(tmp_path / "out.json").num_inference_steps == 5
    status, _, said = run("calibrate", *given, "--force", "--steps", "6", "--call", '{"num_inference_steps": 5}')
    assert status == 2
    assert "both say how many denoising steps" in said
    status, _, said = run("calibrate", *given, "--call", '{"fit_prompts": 2}')
    assert status == 2
    assert "fit_prompts is an option of the command" in said
