"""Pipelines from functions, with other arguments and results than those of diffusers, and of modular blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import omnireuse_lab
from omnireuse.errors import ConfigError
from omnireuse_lab.record import read_comparison
from tests.helpers.custom import Bare, Noisy, Signed, unsigned
from tests.helpers.sources import PROMPTS, Run


def compared(pipeline: Any, out: Path, **given: Any) -> dict[str, list[Any]]:
    asked = {"steps": 6, "only": ["fewer-steps", "default"], "progress": False, "out": out}
    pareto = omnireuse_lab.compare_pipeline(pipeline, PROMPTS[:2], **{**asked, **given})
    assert (out / "compare.json").is_file()
    assert pareto.environment["device"] == "cpu"
    (case,) = pareto.cases
    assert not [point.error for point in case.points if point.error]
    return {
        method: [point for point in case.points if point.method == method]
        for method in {point.method for point in case.points}
    }


@pytest.mark.parametrize(("kind", "given"), [(Noisy, {}), (Signed, {"pictures": unsigned})])
def test_a_custom_pipeline_is_compared(kind: type[Any], given: dict[str, Any], tmp_path: Path) -> None:
    points = compared(kind(), tmp_path, **given)
    assert [round(point.computed_steps) for point in points["fewer uniform steps"]] == [4, 3, 2]
    (ours,) = points["omnireuse, default"]
    assert 20 < ours.psnr.mean <= 100


def test_a_modular_pipeline_is_compared(modular: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    points = compared(modular, tmp_path, height=64, width=64, max_sequence_length=20)
    assert [round(point.computed_steps) for point in points["fewer uniform steps"]] == [4, 3, 2]
    assert points["omnireuse, default"][0].psnr.mean > 15
    assert "it/s" not in capfd.readouterr().err, "its own bar is off meanwhile"


@pytest.mark.parametrize("name", ["num_inference_steps", "callback_on_step_end", "generator", "output_type", "prompt"])
def test_what_a_comparison_sets_itself_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, TypeError), match=name):
        compared(Bare(), tmp_path, **{name: 5})


def test_a_pipeline_from_a_function_is_compared_with_its_own_pictures(run: Run, tmp_path: Path) -> None:
    given = ("--pipeline", "custom:make_signed", "--pictures", "custom:unsigned", "--steps", "6")
    status, _, said = run("compare", *given, "--only", "fewer-steps", "default")
    assert status == 0
    assert said.startswith("loading the libraries and the model Signed on cpu in float32; prompts: 4, methods: 2")
    pareto = read_comparison(tmp_path / "out.json")
    assert pareto.cases[0].pipeline == "Signed"
    assert not [point.error for point in pareto.cases[0].points if point.error]


def test_a_pipeline_is_compared_in_the_dtype_that_was_asked_for(run: Run, tmp_path: Path) -> None:
    given = ("--pipeline", "custom:make_whole", "--dtype", "bfloat16", "--device", "cpu")
    status, _, said = run("compare", *given, "--steps", "4", "--only", "default")
    assert status == 0
    assert "Whole on cpu in bfloat16" in said
    assert read_comparison(tmp_path / "out.json").environment["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((), "MODEL, a folder or an id, or --pipeline must be given"),
        (("nowhere",), "there is no such folder"),
        (("--pipeline", "custom:make_signed"), "give pictures="),
        (
            ("--pipeline", "custom:make_bare", "--call", '{"num_inference_steps": 5}'),
            "num_inference_steps is set by compare itself",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(run: Run, given: tuple[str, ...], complaint: str) -> None:
    status, _, said = run("compare", *given)
    assert status == 2
    assert complaint in said
