"""Committed profiles on runs whose guidance or noise is not that of their calibration."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import Profile
from reference.case import IMAGES

FALLBACK = "the default's plan"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile.load(IMAGES.find(None) / "profiles" / "shapes-flux-28-guided.json")


def made(pipeline: Any, steps: int = 28, **options: Any) -> tuple[Any, list[int], Any]:
    scale = options.pop("scale", 6.0)
    caption = IMAGES.caption(IMAGES.held_out(1, seed=1)[0])
    with omnireuse.enable(pipeline, computed_steps=14, **options) as handle:
        picture = IMAGES.generate(pipeline, [caption], [1], num_inference_steps=steps, true_cfg_scale=scale)
    return picture, sorted({event.step for event in handle.events if not event.reused}), handle.summary()


@pytest.fixture(scope="module")
def pipeline() -> Any:
    pipeline = IMAGES.load()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.mark.parametrize("scale", [6.0, 5.0])
def test_other_guidance_gets_the_plan_of_the_default(
    pipeline: Any, profile: Profile, scale: float, caplog: pytest.LogCaptureFixture
) -> None:
    picture, computed, summary = made(pipeline, profile=profile, scale=scale)
    default, by_default, _ = made(pipeline, scale=scale)
    is_other = scale != 6.0
    assert summary.fallbacks == ({FALLBACK: 1} if is_other else {})
    assert ((picture == default).all(), computed == by_default) == (is_other, is_other)
    assert summary.promise_holds == (not is_other)
    said = f"true_cfg_scale={scale:g} in place of 6: the profile was not calibrated for this guidance"
    assert (said in caplog.text) == is_other
    assert ("goes on with the default's steps" in caplog.text) == is_other
    assert (f"fell back to {FALLBACK} 1 time; the log says why" in str(summary)) == is_other


def test_the_guidance_of_each_run_counts(pipeline: Any, profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(pipeline, profile=profile) as handle:
        for scale in (12.0, 6.0, 12.0):
            IMAGES.generate(pipeline, ["a red circle"], [1], num_inference_steps=28, true_cfg_scale=scale)
    runs: dict[int, set[int]] = {}
    for event in handle.events:
        if not event.reused:
            runs.setdefault(event.run, set()).add(event.step)
    assert runs[1] == runs[3] != runs[2] == set(profile.best().steps)
    assert handle.summary().fallbacks == {FALLBACK: 2}
    assert caplog.text.count("true_cfg_scale=12 in place of 6") == 1


def test_another_shift_computes_where_the_default_does(pipeline: Any, profile: Profile) -> None:
    own = pipeline.scheduler
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler.from_config(own.config, shift=3.0)
    try:
        _, computed, summary = made(pipeline, profile=profile)
        _, by_default, _ = made(pipeline)
    finally:
        pipeline.scheduler = own
    assert computed == by_default
    assert not summary.promise_holds
    assert summary.fallbacks == {FALLBACK: 1}
