"""What is promised, for which runs, what the summary says of it, and what can be had without a profile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from msgspec.structs import replace

import omnireuse
from omnireuse import Profile
from omnireuse.diffusion.calibration.profile import Plan
from omnireuse.errors import ConfigError, StateError, WrongTypeError
from tests.helpers.prompted import Prompted

PROMPTS = ["a circle", "a square", "a cross", "a ring"]
STEPS = 12


@pytest.fixture(scope="module")
def profile() -> Profile:
    found = omnireuse.calibrate(Prompted(), PROMPTS, steps=STEPS, computed_steps=[5], evaluations=1)
    plan = Plan(steps=(0, 1, 2, 5, 11), forecaster="hold", psnr=40.0, held_out=(36.0, 38.0, 40.0, 42.0))
    return replace(found, plans={5: plan})


def computed(pipeline: Any, profile: Profile, steps: int = STEPS) -> tuple[list[int], Any]:
    with omnireuse.enable(pipeline, profile=profile, computed_steps=5) as handle:
        pipeline("a circle", num_inference_steps=steps, output_type="latent")
    return [event.step for event in handle.events if not event.reused], handle.summary()


def test_the_summary_says_what_was_promised_and_what_was_done(
    profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    steps, summary = computed(Prompted(), profile)
    assert steps == [0, 1, 2, 5, 11]
    assert summary.computed_steps == 5
    assert summary.promise is not None
    assert summary.promise.quality == profile.plans[5].promised
    assert summary.promise.expected == 39.0
    assert summary.promise_holds
    assert 0 < summary.mean_error <= summary.worst_error
    said = str(summary)
    assert "36.0 dB PSNR promised (39.0 dB on 4 held-out prompts; a mean over new ones is within 36.0 and 42.0" in said
    assert "this is not the error of the result" in said
    assert "not promised" not in said + caplog.text


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        ((), "nothing is promised: the plan was not judged"),
        ((38.0,), "nothing is promised: 38.0 dB on 1 held-out prompt, which"),
        ((38.0, 40.0), "nothing is promised: 39.0 dB on 2 held-out prompts, which are too few"),
    ],
)
def test_few_held_out_prompts_are_no_certainty(profile: Profile, held_out: tuple[float, ...], said: str) -> None:
    unsure = replace(profile, plans={5: replace(profile.plans[5], held_out=held_out)})
    assert said in str(computed(Prompted(), unsure)[1])


def test_another_dtype_is_served_and_not_promised(profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    assert profile.dtype == "float32"
    half = replace(profile, dtype="bfloat16")
    steps, summary = computed(Prompted(), half)
    assert steps == [0, 1, 2, 5, 11]
    warned = "the profile was measured in bfloat16, the pipeline is in float32"
    assert caplog.text.count(warned) == 1
    assert "nothing is promised: the profile was measured in bfloat16, the pipeline is in float32" in str(summary)
    with pytest.raises(
        StateError, match=r"nothing is promised, for the profile was measured in bfloat16, the pipeline is in float32"
    ):
        omnireuse.enable(Prompted(), profile=half, quality=30)
    caplog.clear()
    assert "promised (39.0 dB" in str(computed(Prompted(), replace(profile, dtype=None))[1]), "older files do not say"
    assert not caplog.text


def test_other_weights_are_served_and_not_promised(profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    assert profile.origin is not None
    assert profile.origin.weights is not None
    assert profile.origin.name == "", "this pipeline does not say where it comes from"
    tuned = Prompted()
    with torch.no_grad():
        next(tuned.transformer.parameters()).mul_(1.001)
    _, summary = computed(tuned, profile)
    assert caplog.text.count("the profile was made for other weights of") == 1
    assert "nothing is promised: the profile was made for other weights" in str(summary)
    with pytest.raises(StateError, match="nothing is promised, for the profile was made for other weights"):
        omnireuse.enable(tuned, profile=profile, quality=30)
    caplog.clear()
    revised = replace(profile, origin=replace(profile.origin, revision="0123456789", weights="0" * 16))
    assert "at revision 0123456, the pipeline is" in str(computed(Prompted(), revised)[1])
    caplog.clear()
    assert "promised (39.0 dB" in str(computed(Prompted(), replace(profile, origin=None))[1]), "older files do not say"
    assert not caplog.text


def test_another_step_count_is_served_by_noise_and_not_promised(
    profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    steps, summary = computed(Prompted(), profile, steps=24)
    assert len(steps) == 10
    assert not summary.promise_holds
    assert "12 steps, their noise or their guidance, and the plan was carried over" in str(summary)
    assert caplog.text.count("its quality is not promised") == 1


def test_another_shift_is_served_by_noise_and_not_promised(profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Prompted()
    shifted = FlowMatchEulerDiscreteScheduler(shift=4.0)
    pipeline.scheduler = pipeline.inner.scheduler = shifted
    steps, summary = computed(pipeline, profile)
    assert len(steps) == 5
    assert steps != [0, 1, 2, 5, 11]
    assert not summary.promise_holds
    assert "its quality is not promised" in caplog.text


def test_a_quality_without_a_profile_says_both_ways() -> None:
    with pytest.raises(ConfigError, match=r"omnireuse\.calibrate.*tolerance="):
        omnireuse.enable(Prompted(), quality=35)


@pytest.mark.parametrize("other", [{"speedup": 2}, {"quality": 30}, {"computed_steps": 3}, {"profile": "profile.json"}])
def test_a_tolerance_is_a_wish_of_its_own(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give one of tolerance and"):
        omnireuse.enable(Prompted(), tolerance=0.1, **other)


@pytest.mark.parametrize("tolerance", [0, -1, float("nan"), float("inf"), True])
def test_a_tolerance_that_makes_no_sense_is_refused(tolerance: float) -> None:
    with pytest.raises((ConfigError, WrongTypeError), match="tolerance must be a relative error"):
        omnireuse.enable(Prompted(), tolerance=tolerance)


def test_a_tolerance_holds_for_the_final_latents_and_a_larger_one_computes_less() -> None:
    from reference.load import SAMPLING, load_image_pipeline

    pipeline = load_image_pipeline()
    pipeline.set_progress_bar_config(disable=True)

    def latents() -> torch.Tensor:
        made: torch.Tensor = pipeline(
            "a large red circle on a plain gray background",
            **SAMPLING | {"output_type": "latent", "generator": torch.Generator().manual_seed(0)},
        ).images
        return made

    full, counts = latents(), []
    for tolerance in (0.15, 0.5):
        with omnireuse.enable(pipeline, tolerance=tolerance) as handle:
            found = latents()
        counts.append(handle.summary().computed_steps)
        assert float((found - full).abs().sum() / full.abs().sum()) <= tolerance
    assert counts[1] < counts[0] < SAMPLING["num_inference_steps"]


def test_the_profile_refuses_other_sampling_but_not_another_shift(profile: Profile) -> None:
    pipeline = Prompted()
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=500)
    with pytest.raises(StateError, match="configuration"):
        profile.check(pipeline)
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=7.0)
    profile.check(pipeline)
