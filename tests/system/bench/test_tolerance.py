"""What a tolerance and a quality leave, measured caption by caption, and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import quality, tolerance
from omnireuse.tuning.budget import JUDGED


@pytest.mark.slow
@pytest.mark.integration
def test_a_tolerance_is_measured_in_the_final_latents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = ["--case", "shapes-flux", "--run", "shift 1", "--guidance", "unguided", "--prompts", "1", "--draws", "1"]
    tolerance.main([*part, "--tolerances", "0.2", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "tolerance.json").read_text())["rows"]
    untuned, tuned = (next(row for row in rows if row["method"] == name) for name in ("untuned", "tuned"))
    for row in (untuned, tuned):
        assert 2 < row["computed"] < 28
        assert 0 < row["errors"][0] < 0.3
    assert tuned["state"] == "ready"
    assert JUDGED < tuned["runs"] <= 2 * JUDGED
    assert {row["setting"] for row in rows if row["method"] == "fewer"} == {untuned["computed"], tuned["computed"]}
    assert (tmp_path / "tolerance.png").stat().st_size > 5_000
    assert "kept in" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.integration
def test_a_quality_is_measured_in_the_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = ["--case", "shapes-flux", "--run", "shift 1", "--guidance", "unguided", "--prompts", "1", "--draws", "1"]
    quality.main([*part, "--qualities", "40", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "quality.json").read_text())["rows"]
    (tuned,) = (row for row in rows if row["method"] == "tuned")
    assert tuned["state"] == "ready"
    assert 2 < tuned["computed"] < 28
    assert tuned["each"][0] > 40
    assert {row["setting"] for row in rows if row["method"] == "fewer"} == {tuned["computed"]}
    assert "kept in 1 of 1" in capsys.readouterr().out


def test_halving_finds_the_smallest_number_that_keeps_a_tolerance() -> None:
    asked: list[int] = []

    class Rows:
        player = tolerance.Latents

        def get(self, method: str, count: int) -> dict[str, Any]:
            asked.append(count)
            return {"errors": [0.1 if count < 11 else 0.01]}

    assert tolerance.smallest_kept(Rows(), 0.05) == 11
    assert len(asked) <= 5
