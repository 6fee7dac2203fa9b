"""`omnireuse demo` draws one prompt in full, with reuse and with fewer steps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lab.tests.compare.test_command import CALL
from omnireuse.cli import main
from omnireuse_lab.demo import example_of
from reference.case import CASES, Case
from reference.load import find_image_pipeline


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a model, with a card that may be written to."""
    folder = tmp_path / "model"
    shutil.copytree(find_image_pipeline(), folder, ignore=shutil.ignore_patterns("*.png", "profiles"))
    return folder


def test_three_pictures_and_what_they_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["demo", str(find_image_pipeline()), "--steps", "8", "--call", CALL, "--out", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    for name, steps in (("full", 8), ("reused", 4), ("fewer", 4)):
        assert f"{tmp_path / name}.png: {steps} computed steps in" in shown
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.size == (64, 64)
    assert shown.count("dB to the full run") == 2
    assert "4 of 8 steps computed (2.00x fewer)" in shown


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_card_shows_the_call_of_its_model(case: Case) -> None:
    example = example_of(str(case.find(None)))
    assert example.prompt == case.caption(case.held_out(1)[0])
    assert example.call == case.sampling


@pytest.mark.parametrize(
    ("options", "said", "size"),
    [
        (
            [],
            ["prompt (from the model's card): a large red", "steps (from the model's card): 4", "height=64"],
            (64, 64),
        ),
        (
            ["--prompt", "a cross", "--steps", "3", "--call", '{"height": 32}'],
            [
                "prompt (as given): a cross",
                "steps (as given): 3",
                "call (as given, and from the model's card): height=32",
            ],
            (64, 32),
        ),
    ],
)
def test_what_is_left_out_comes_from_the_model_s_card(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: list[str], size: Any
) -> None:
    card = (model / "README.md").read_text("utf-8")
    (model / "README.md").write_text(card.replace("steps: 28", "steps: 4\n    temperature: 0.7"), "utf-8")
    assert main(["demo", str(model), *options, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for words in (*said, "left out of the model's card, because FluxPipeline does not take it: temperature"):
        assert words in shown
    with Image.open(tmp_path / "full.png") as picture:
        assert picture.size == size


@pytest.mark.parametrize("card", [None, "# no metadata", "---\nwidget: 3\ninference: false\n---\n", "---\n: [\n---\n"])
def test_what_no_card_says_is_assumed_aloud(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], card: str | None
) -> None:
    (model / "README.md").unlink()
    if card is not None:
        (model / "README.md").write_text(card, "utf-8")
    assert example_of(str(model)) == (None, {})
    assert main(["demo", str(model), "--steps", "2", "--call", CALL, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "prompt (assumed, for no card of the model has it; --prompt sets it): a large red circle" in shown
    assert "call (as given): height=64, width=64, max_sequence_length=20" in shown


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", str(tmp_path / "nowhere")]) == 2
    assert main(["demo", str(find_image_pipeline()), "--speedup", "0.5", "--call", CALL, "--out", str(tmp_path)]) == 2
    assert "speedup must be a number of at least 1" in " ".join(capsys.readouterr().err.split())
