"""The bars of measured pictures and of the shadows after them: nobody thinks that the pipeline hangs."""

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


def test_bars_say_what_is_measured_and_tried(flux: Tiny, capfd: pytest.CaptureFixture[str]) -> None:
    flux.pipe.set_progress_bar_config(mininterval=0)
    with omnireuse.enable(flux.pipe, computed_steps=8) as handle:
        first, second, third, fourth = (shown(flux, capfd, seed) for seed in range(4))
        assert handle.tuning.state == "ready"
    for number, text in enumerate((first, second, third), 1):
        assert f"omnireuse measures picture {number} of 3" in text
        assert "tune=False" in text
        assert "OMNIREUSE_TUNE=0" in text
    assert "tries" not in first
    for text in (second, third):
        assert (found := re.search(r"omnireuse tries plan 1 of (\d), for the pictures after this one", text))
        assert f"omnireuse tries plan {found[1]} of {found[1]}, for the pictures after this one" in text
        assert f"{STEPS}/{STEPS}" in text
    assert "omnireuse" not in fourth
    assert "omnireuse" not in shown(flux, capfd, 5), "the settings are as before"


def test_a_pipeline_whose_bar_was_replaced_is_measured_all_the_same(flux: Tiny) -> None:
    made = flux.pipe.progress_bar
    flux.pipe.progress_bar = lambda *args, **kwargs: made(*args, **kwargs)
    with omnireuse.enable(flux.pipe, computed_steps=8) as handle:
        for seed in range(3):
            flux.run(steps=STEPS, seed=seed)
        assert handle.tuning.state == "ready"
