"""The bars of measured pictures and of the trial runs after them: nobody thinks that the pipeline hangs."""

from __future__ import annotations

import re

import pytest

import omnireuse
from tests.helpers.tiny import Tiny

STEPS = 16


def shown(tiny: Tiny, capfd: pytest.CaptureFixture[str], seed: int) -> str:
    """The bars of one picture."""
    capfd.readouterr()
    tiny.run(steps=STEPS, seed=seed)
    return capfd.readouterr().err


def test_one_bar_a_picture_goes_on_through_its_trial_runs(flux: Tiny, capfd: pytest.CaptureFixture[str]) -> None:
    flux.pipe.set_progress_bar_config(mininterval=0)
    with omnireuse.enable(flux.pipe, computed_steps=8) as handle:
        first, second, third, fourth = (shown(flux, capfd, seed) for seed in range(4))
        assert handle.tuning.state == "ready"
    for text in (first, second, third):
        assert "omnireuse: measuring (off: tune=False, OMNIREUSE_TUNE=0)" in text
        reached = [int(each) for each in re.findall(r"(\d+)/\d+ \[", text)]
        assert reached == sorted(reached), "it never begins again"
        assert text.count("\n") == 1
    assert f"{STEPS}/{STEPS} [" in first
    for text in (second, third):
        assert f"{STEPS}/{2 * STEPS} [" in text
        assert re.search(rf"100%.* ({STEPS + 8}|2\d|3\d)/", text), "with the trial runs"
    assert "omnireuse" not in fourth
    assert "omnireuse" not in shown(flux, capfd, 5), "the settings are as before"


def test_a_pipeline_whose_bar_was_replaced_is_measured_all_the_same(flux: Tiny) -> None:
    made = flux.pipe.progress_bar
    flux.pipe.progress_bar = lambda *args, **kwargs: made(*args, **kwargs)
    with omnireuse.enable(flux.pipe, computed_steps=8) as handle:
        for seed in range(3):
            flux.run(steps=STEPS, seed=seed)
        assert handle.tuning.state == "ready"
