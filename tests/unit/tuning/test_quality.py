"""A quality without a profile: the first pictures say how many steps compute, and all do where no plan is found."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from diffusers import HeunDiscreteScheduler

import omnireuse
from omnireuse.errors import ConfigError
from omnireuse.pipelines.pictures import psnr
from omnireuse.tuning.budget import JUDGED
from tests.helpers import tiny
from tests.helpers.tiny import Tiny

STEPS, QUALITY = 30, 25.0


@pytest.fixture
def flux() -> Tiny:
    """Without guidance: with it, a random model bends too much for plans of three pictures."""
    torch.manual_seed(0)  # of the decoder's weights
    guided = tiny.flux()
    return Tiny(guided.pipe, lambda **call: guided.inputs(**call | {"guided": False}) | {"output_type": "pt"})


def pictures(flux: Tiny, count: int) -> list[torch.Tensor]:
    return [flux.run(steps=STEPS, seed=seed) for seed in range(count)]


def closeness(found: torch.Tensor, full: torch.Tensor) -> float:
    return psnr(*(each[0].permute(1, 2, 0).numpy() for each in (found, full)))


def computed(handle: omnireuse.Handle) -> list[int]:
    """The steps that the latest run has computed."""
    latest = max(event.run for event in handle.events)
    return sorted({event.step for event in handle.events if event.run == latest and not event.reused})


def test_a_quality_is_tuned_and_then_kept_with_a_fixed_schedule(flux: Tiny) -> None:
    full, schedules = pictures(flux, JUDGED + 3), []
    with omnireuse.enable(flux.pipe, quality=QUALITY) as handle:
        for seed in range(JUDGED):
            assert torch.equal(flux.run(steps=STEPS, seed=seed), full[seed])
        assert handle.tuning.state == "ready"
        assert handle.tuning.pictures == JUDGED
        assert f"of {STEPS} steps computed, 25 dB expected of nine of ten pictures" in handle.tuning.reason
        assert "promise" not in str(handle.summary())
        # The trial runs together take no more work than the pictures.
        assert JUDGED < handle.tuning.runs <= 2 * JUDGED
        for seed in range(JUDGED, JUDGED + 3):
            assert closeness(flux.run(steps=STEPS, seed=seed), full[seed]) >= QUALITY
            schedules.append(computed(handle))
    assert schedules[0] == schedules[1] == schedules[2]
    assert 1 < len(schedules[0]) < STEPS
    assert torch.equal(flux.run(steps=STEPS, seed=JUDGED), full[JUDGED])


@pytest.mark.slow
def test_a_quality_that_no_plan_keeps_computes_every_step_here_and_in_the_next_process(flux: Tiny) -> None:
    full = pictures(flux, JUDGED + 1)
    for measured in (JUDGED + 1, 0):
        with omnireuse.enable(flux.pipe, quality=100) as handle:
            for made, true in zip(pictures(flux, max(measured, 1)), full, strict=False):
                assert torch.equal(made, true)
            assert handle.tuning.state == "ready"
            assert handle.tuning.pictures == JUDGED
            assert handle.tuning.expected is None
            assert "is computed; no plan of fewer steps was seen to keep the quality" in str(handle.summary())


def test_runs_that_are_not_tuned_compute_every_step_and_say_so_once(
    flux: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    full = [flux.run(steps=3, seed=seed) for seed in range(2)]
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(flux.pipe, quality=QUALITY) as handle:
        assert all(torch.equal(flux.run(steps=3, seed=seed), full[seed]) for seed in range(2))
        assert handle.tuning.state == "off"
        assert "every step is computed: every step of a run of 3 is computed" in str(handle.summary())
    assert caplog.text.count("every step of a run of 3 is computed") == 1


def test_a_solver_that_is_not_tuned_computes_every_step_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    made = tiny.stable_diffusion()
    made.pipe.scheduler = HeunDiscreteScheduler()
    full = made.run(steps=8, output_type="pt")
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(made.pipe, quality=QUALITY) as handle:
        for _ in range(3):
            assert torch.equal(made.run(steps=8, output_type="pt"), full)
        assert handle.tuning.state == "off"
        assert "every step is computed: the noise of HeunDiscreteScheduler" in str(handle.tuning)
    assert caplog.text.count("every step is computed") == 1


def test_a_quality_of_latents_alone_is_not_tuned(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    latents = Tiny(flux.pipe, lambda **call: flux.inputs(**call) | {"output_type": "latent"})
    full = pictures(latents, JUDGED + 1)
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(flux.pipe, quality=QUALITY) as handle:
        assert all(torch.equal(*pair) for pair in zip(pictures(latents, JUDGED + 1), full, strict=True))
        assert handle.tuning.state == "failed"
    assert "a quality is one of pictures, and the call returns none" in caplog.text
    assert caplog.text.count("not tuned, every step is computed") == 1


@pytest.mark.parametrize(
    ("given", "environment", "why"),
    [
        ({"tune": False}, "1", "tuning, which is off (tune=False); give profile="),
        ({}, "0", "tuning, which is off (OMNIREUSE_TUNE turns it off)"),
        ({"region": "call"}, "1", "tuning, which is off (region 'call' is not tuned)"),
    ],
)
def test_a_quality_without_a_profile_and_tuning_is_an_error(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], environment: str, why: str
) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", environment)
    with pytest.raises(ConfigError, match="can only be promised by a profile of this pipeline") as caught:
        omnireuse.enable(flux.pipe, quality=40, **given)
    assert why in str(caught.value)
    assert "tolerance=" in str(caught.value)
    assert omnireuse.handle_of(flux.pipe) is None


def test_a_quality_with_a_profile_is_not_tuned(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, computed_steps=15) as handle:
        pictures(flux, 3)
        profile = handle.tuned_profile
    with pytest.raises(ConfigError, match="a promise takes at least 5 held-out prompts"):
        omnireuse.enable(flux.pipe, profile=profile, quality=20)
    with pytest.raises(ConfigError, match="and profile has chosen one; leave one of the two out"):
        omnireuse.enable(flux.pipe, profile=profile, quality=20, tune=True)


@pytest.mark.parametrize("given", [0.9, 0.0, 14.9, 101])
def test_a_quality_that_is_no_psnr_of_a_close_picture_is_refused(flux: Tiny, given: float) -> None:
    with pytest.raises(ConfigError, match="quality must be a PSNR in dB of at least 15 and at most 100") as caught:
        omnireuse.enable(flux.pipe, quality=given)
    assert ("SSIM" in str(caught.value)) == (given == 0.9)


def test_pictures_of_one_call_do_not_judge_each_other(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, quality=QUALITY) as handle:
        flux.run(steps=STEPS, batch=JUDGED)
        assert handle.tuning.state == "measuring"
        flux.run(steps=STEPS, batch=JUDGED, seed=1)
        assert handle.tuning.state == "ready"
