"""As many steps compute as were asked for, whether or not the profile has a plan for them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import omnireuse
from omnireuse import Profile
from omnireuse.errors import ConfigError
from tests.helpers.prompted import Prompted

PROMPTS = ["a circle", "a square", "a cross", "a ring"]
STEPS = 20


@pytest.fixture(scope="module")
def profile() -> Profile:
    return omnireuse.calibrate(Prompted(), PROMPTS, steps=STEPS, computed_steps=[5, 8, 10])


def made(steps: int = STEPS, **options: Any) -> tuple[list[int], Any]:
    pipeline = Prompted()
    with omnireuse.enable(pipeline, **options) as handle:
        pipeline("a circle", num_inference_steps=steps, output_type="latent")
    return sorted({event.step for event in handle.events if not event.reused}), handle.summary()


@pytest.mark.parametrize(
    ("target", "count"),
    [({"computed_steps": count}, count) for count in (2, 5, 6, 8, 9, 10, 14, 20)]
    + [({"speedup": speedup}, count) for speedup, count in ((1, 20), (1.2, 17), (2, 10), (2.2, 9), (2.5, 8), (6, 3))],
)
def test_exactly_what_was_asked_for_computes(
    profile: Profile, target: dict[str, Any], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "omnireuse"):
        computed, summary = made(profile=profile, **target)
    without, _ = made(**target)
    assert len(computed) == len(without) == count
    said = f"the profile has no plan for {count} of 20 steps, but for 5, 8, 10; the run follows the default"
    if count in profile.plans:
        assert computed == list(profile.plans[count].steps)
        assert summary.name == f"profile: {count} of 20 steps"
        assert said not in caplog.text
    else:
        assert computed == without
        assert summary.name == f"{count} of 20 steps, without a plan of the profile"
        assert f"not promised: {said}" in str(summary)
        assert [record.levelno for record in caplog.records if said in record.getMessage()] == [logging.INFO]
        assert not summary.promise_holds


@pytest.mark.parametrize(
    ("target", "count"),
    [
        ({"computed_steps": 8}, 8),
        ({"computed_steps": 9}, 9),
        ({"speedup": 2.5}, 11),
        ({"speedup": 2.2}, 12),
        ({}, 14),
    ],
)
def test_a_run_of_another_length_computes_what_was_asked_for_too(
    profile: Profile, target: dict[str, Any], count: int
) -> None:
    computed, summary = made(steps=27, profile=profile, **target)
    assert len(computed) == count
    assert not summary.promise_holds


def test_a_run_that_is_shorter_than_what_was_asked_for_computes_it_all(profile: Profile) -> None:
    assert made(steps=6, profile=profile, computed_steps=8)[0] == list(range(6))


def test_one_step_is_refused_with_a_profile_too(profile: Profile) -> None:
    with pytest.raises(ConfigError, match=r"enable\(computed_steps=1\): computed_steps must be at least 2, got 1"):
        made(profile=profile, computed_steps=1)
