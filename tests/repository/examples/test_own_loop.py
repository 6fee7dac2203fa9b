"""The examples of loops of one's own do what they say."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest
import torch

from omnireuse import Hold, Spread, Strategy
from tests import TOP

EXAMPLE = str(TOP / "examples" / "own_loop.py")


def test_a_loop_of_ones_own_reuses() -> None:
    sample = runpy.run_path(EXAMPLE)["sample"]
    full, computed = sample(Strategy(policy=Spread(speedup=1.0)))
    assert computed == 28
    reused, computed = sample(Strategy(policy=Spread(speedup=2.0), forecaster=Hold()))
    assert computed == 14
    assert not torch.equal(full, reused)
    assert float((full - reused).abs().mean() / full.abs().mean()) < 0.1


def test_the_example_runs_as_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(EXAMPLE, run_name="__main__")
    assert "14 of 28 steps computed" in capsys.readouterr().out


def test_the_loop_with_a_call_is_tuned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock
    first, second = [], []
    for lines in (first, second):
        runpy.run_path(str(TOP / "examples" / "tuned_loop.py"), run_name="__main__")
        lines += capsys.readouterr().out.splitlines()
    assert all("error 0.000%" in line for line in first[:3])
    assert "tuned: 14 of 28 steps computed" in first[3]
    assert "tuned: 14 of 28 steps computed" in second[0]
    assert "error 0.000%" not in second[0]
