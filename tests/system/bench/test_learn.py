"""The table of `bench learn`, and a run that goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import learn


class Player:
    """Figures without a pipeline: learning gains 1 dB on one caption and 3 dB on the other."""

    made = 0

    def __init__(self, case: str, prompts: int, runs: int) -> None:
        pass

    def begin(self, shift: float, *, guided: bool) -> None:
        pass

    def measure(self, speedup: float, runs: list[int]) -> dict[str, Any]:
        Player.made += 1
        learned = [{"runs": number, "psnr": [41.0, 43.0]} for number in runs]
        return {"default": [40.0, 40.0], "computed": [0, 2], "learned": learned}


def test_gains_are_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learn, "Player", Player)
    monkeypatch.setenv("COLUMNS", "160")
    part = ["--case", "image", "--guidance", "guided", "--shift", "1", "--runs", "8", "--out", str(tmp_path)]
    learn.main([*part, "--speedup", "2"])
    assert "42.0 (+2.0 ± 1.0)" in capsys.readouterr().out
    learn.main([*part, "--speedup", "2", "3"])
    record = json.loads((tmp_path / "learn.json").read_text())
    assert [row["speedup"] for row in record["rows"]] == [2.0, 3.0]
    assert Player.made == 2
