"""A scheduler that bounds x0 in its step is said, for forecasts of x0 do not see it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from diffusers import DDIMScheduler, DDPMScheduler, PNDMScheduler

import omnireuse
from tests.helpers.tiny import TINY


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (DDPMScheduler(clip_sample=True), "DDPMScheduler bounds x0 in its step (clip_sample=True)"),
        (
            DDIMScheduler(clip_sample=False, thresholding=True),
            "DDIMScheduler bounds x0 in its step (thresholding=True)",
        ),
        (DDPMScheduler(clip_sample=False), ""),
        (DDPMScheduler(clip_sample=True, prediction_type="sample"), ""),
        (PNDMScheduler(), ""),
    ],
    ids=repr,
)
def test_a_scheduler_that_clips_is_said_once(scheduler: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    tiny = TINY["stable_diffusion"]()
    tiny.pipe.scheduler = scheduler
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(tiny.pipe, policy="fixed"):
        tiny.run()
        tiny.run()
    texts = [each.getMessage() for each in caplog.records if "bounds x0" in each.getMessage()]
    assert len(texts) == bool(said)
    assert all(said in text and "prediction_target='output'" in text for text in texts)
