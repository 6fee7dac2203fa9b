"""`omnireuse demo` draws one prompt in full, with reuse and with fewer steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from omnireuse.cli import main
from reference.load import find_image_pipeline
from tests.system.compare.test_command import CALL


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


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", str(tmp_path / "nowhere")]) == 2
    assert main(["demo", str(find_image_pipeline()), "--speedup", "0.5", "--call", CALL, "--out", str(tmp_path)]) == 2
    assert "speedup must be a number of at least 1" in " ".join(capsys.readouterr().err.split())
