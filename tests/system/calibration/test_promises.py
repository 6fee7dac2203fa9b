"""What is promised, for which runs, what the summary says of it, and what can be had without a profile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from msgspec.structs import replace

import omnireuse
from omnireuse import Profile
from omnireuse.errors import ConfigError, StateError
from omnireuse.profiles.profile import Plan
from tests.helpers.prompted import Prompted

PROMPTS = ["a circle", "a square", "a cross", "a ring"]
STEPS = 12


@pytest.fixture(scope="module")
def profile() -> Profile:
    found = omnireuse.calibrate(Prompted(), PROMPTS, steps=STEPS, computed_steps=[5])
    plan = Plan(steps=(0, 1, 2, 5, 11), forecaster="hold", psnr=40.0, held_out=(38.0, 39.0, 40.0, 41.0, 42.0))
    return replace(found, plans={5: plan})


def computed(pipeline: Any, profile: Profile, steps: int = STEPS) -> tuple[list[int], Any]:
    with omnireuse.enable(pipeline, profile=profile) as handle:
        pipeline("a circle", num_inference_steps=steps, output_type="latent")
    return [event.step for event in handle.events if not event.reused], handle.summary()


def test_the_summary_says_what_was_promised_and_what_was_done(
    profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    steps, summary = computed(Prompted(), profile)
    assert steps == [0, 1, 2, 5, 11]
    assert summary.computed_steps == 5
    assert summary.promise is not None
    # 3.407 standard deviations below the mean.
    assert (
        summary.promise.quality == summary.promise.tenth == profile.plans[5].promised == pytest.approx(34.61, abs=0.01)
    )
    assert summary.promise.expected == 40.0
    assert summary.promise_holds
    assert summary.mean_error > 0
    said = str(summary)
    assert "\n  promised: nine of ten reach 34.6 dB; mean 40.0 on 5 held-out prompts" in said
    assert "not promised" not in said + caplog.text


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        ((), "not promised: the plan was not judged on held-out prompts"),
        ((38.0,), "not promised: too few held-out prompts (mean 38.0 on 1 held-out prompt)"),
        ((38.0, 39.0, 40.0, 41.0), "not promised: too few held-out prompts (mean 39.5 on 4 held-out prompts)"),
    ],
)
def test_few_held_out_prompts_are_no_certainty(profile: Profile, held_out: tuple[float, ...], said: str) -> None:
    unsure = replace(profile, plans={5: replace(profile.plans[5], held_out=held_out)})
    assert said in str(computed(Prompted(), unsure)[1])


# -- what differs when reuse is enabled --------------------------------------------------------------------------------


def refused(pipeline: Any, profile: Profile) -> str:
    with pytest.raises(StateError, match=r"profile\(quality=30\): nothing is promised, for ") as error:
        omnireuse.enable(pipeline, profile=profile, quality=30)
    return str(error.value)


def test_another_dtype_is_served_and_not_promised(profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    assert profile.dtype == "float32"
    half = replace(profile, dtype="bfloat16")
    steps, summary = computed(Prompted(), half)
    assert steps == [0, 1, 2, 5, 11]
    warned = "the pipeline computes in float32, the profile was measured in bfloat16"
    assert caplog.text.count(warned) == 1
    assert f"not promised: {warned} (the profile: nine of ten reach 34.6 dB; mean 40.0" in str(summary)
    assert not summary.promise_holds
    assert summary.promise.quality == -math.inf
    assert warned in refused(Prompted(), half)


def test_other_weights_are_served_and_not_promised(profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    assert profile.origin.weights is not None
    assert profile.origin.name == "", "this pipeline does not say where it comes from"
    tuned = Prompted()
    with torch.no_grad():
        next(tuned.transformer.parameters()).mul_(1.001)
    _, summary = computed(tuned, profile)
    assert caplog.text.count("the pipeline has other weights than the profile was measured with") == 1
    assert "not promised: the pipeline has other weights than" in str(summary)
    assert "other weights" in refused(tuned, profile)
    revised = replace(profile, origin=replace(profile.origin, revision="0123456789", weights="0" * 16))
    assert "it is an unnamed pipeline, the profile is of an unnamed pipeline at revision 0123456" in refused(
        Prompted(), revised
    )


# -- what differs from one run to the next -----------------------------------------------------------------------------


def to_bfloat16(pipeline: Any) -> Any:
    for part in (pipeline.transformer, pipeline.inner.vae):
        torch.nn.Module.to(part, torch.bfloat16)


def quantise(pipeline: Any) -> Any:
    class Rounded(torch.nn.Parameter):
        pass

    layer = pipeline.transformer.transformer_blocks[0].attn.to_q
    layer.weight = Rounded(layer.weight.detach())


def add_hook(pipeline: Any) -> Any:
    def brighter(module: Any, inputs: Any, output: Any) -> Any:
        return output * 1.01

    pipeline.transformer.proj_out.register_forward_hook(brighter)


def train(pipeline: Any) -> Any:
    with torch.no_grad():
        next(pipeline.transformer.parameters()).mul_(1.001)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (to_bfloat16, "the pipeline computes in bfloat16, the profile was measured in float32"),
        (quantise, "the pipeline holds its weights as Rounded of float32"),
        (add_hook, "the pipeline has hooks add_hook.brighter on transformer.proj_out"),
        (train, "the pipeline has other weights than the profile was measured with"),
    ],
)
def test_what_changes_after_enable_ends_the_promise_at_the_next_run(
    profile: Profile, change: Callable[[Any], Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Prompted()
    with omnireuse.enable(pipeline, profile=profile, quality=30) as handle:

        def run() -> str:
            pipeline("a circle", num_inference_steps=STEPS, output_type="latent")
            return str(handle.summary())

        assert "  promised: nine of ten" in run()
        change(pipeline)
        assert "  promised: nine of ten" in str(handle.summary()), "it held for the runs so far"
        for _ in range(2):
            said = run()
            assert f"not promised: {named}" in said
            assert said.count("promised") == 1
        assert caplog.text.count(named) == 1


def test_other_arguments_end_the_promise(profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Prompted()
    with omnireuse.enable(pipeline, profile=profile, quality=30) as handle:
        pipeline("a circle", num_inference_steps=STEPS, output_type="latent", generator=torch.Generator())
        assert handle.summary().promise_holds
        for _ in range(2):
            pipeline("a circle", num_inference_steps=STEPS, output_type="latent", height=16)
        assert "not promised: height=16 in place of nothing: the profile was measured with other" in str(
            handle.summary()
        )
    assert caplog.text.count("height=16 in place of nothing") == 1


def test_a_loop_of_ones_own_tells_no_arguments_and_gets_no_promise(profile: Profile) -> None:
    pipeline = Prompted()
    with omnireuse.enable(pipeline, profile=profile, quality=30) as handle:
        pipeline.inner(None, **pipeline._inputs(guided=True, batch=1), num_inference_steps=STEPS)
        assert handle.summary().runs == 0, "another pipeline's call is not ours"
        own = {
            "encoder_hidden_states": torch.zeros(1, 6, 32),
            "pooled_projections": torch.zeros(1, 32),
            "img_ids": torch.zeros(4, 3),
            "txt_ids": torch.zeros(6, 3),
        }
        latents = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0))
        pipeline.scheduler.set_timesteps(sigmas=[1 - i / STEPS for i in range(STEPS)], mu=1.0)
        with torch.no_grad():
            for timestep in pipeline.scheduler.timesteps:
                output = pipeline.transformer(latents, timestep=timestep.expand(1) / 1000, **own).sample
                latents = pipeline.scheduler.step(output, timestep, latents).prev_sample
        assert handle.summary().runs == 1
        assert "not promised: the pipeline was not called" in str(handle.summary())


def test_another_step_count_is_served_and_not_promised(profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    steps, summary = computed(Prompted(), profile, steps=24)
    assert len(steps) == 10
    assert not summary.promise_holds
    assert "not promised: a run has 24 steps, the profile was measured on runs of 12 steps" in str(summary)
    assert caplog.text.count("nothing is promised") == 1


def test_a_quality_without_a_profile_says_both_ways() -> None:
    with pytest.raises(ConfigError, match=r"omnireuse\.calibrate.*tolerance="):
        omnireuse.enable(Prompted(), quality=35)


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
