"""The example of a loop of one's own does what it says."""

from __future__ import annotations

import runpy

import pytest
import torch

from omnireuse import FixedSchedule, Hold, Strategy
from tests import TOP

EXAMPLE = str(TOP / "examples" / "own_loop.py")


def test_a_loop_of_ones_own_reuses() -> None:
    sample = runpy.run_path(EXAMPLE)["sample"]
    full, computed = sample(Strategy(policy=FixedSchedule(speedup=1.0)))
    assert computed == 28
    reused, computed = sample(Strategy(policy=FixedSchedule(speedup=2.0), forecaster=Hold()))
    assert computed == 14
    assert not torch.equal(full, reused)
    assert float((full - reused).abs().mean() / full.abs().mean()) < 0.1


def test_the_example_runs_as_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(EXAMPLE, run_name="__main__")
    assert "14 of 28 steps computed" in capsys.readouterr().out
