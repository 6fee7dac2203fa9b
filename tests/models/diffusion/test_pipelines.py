"""Every region on tiny versions of many diffusers pipelines and schedulers."""

from __future__ import annotations

import copy
import logging
from typing import Any

import diffusers
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import EveryNth, Polynomial, Spread, Steps, TeaCache
from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse.noise.schedulers import noise_levels
from tests.helpers.sweep import sweep
from tests.helpers.tiny import Tiny
from tests.models.diffusion.denoisers import DENOISERS
from tests.models.diffusion.pipelines import image, unet, video

PIPELINES = {**unet.PIPELINES, **image.PIPELINES, **video.PIPELINES}
UNETS = {*unet.PIPELINES, "animate_diff", "kandinsky_decoder", "latent_consistency", "sd_ip_adapter"}
TRANSFORMERS = set(PIPELINES) - UNETS - {"stable_cascade_prior"}

SCHEDULERS: dict[str, dict[str, Any]] = {
    "DDPMScheduler": {"clip_sample": False},  # without sigmas
    "DEISMultistepScheduler": {},
    "DPMSolverMultistepScheduler": {},
    "DPMSolverSinglestepScheduler": {},
    "EulerAncestralDiscreteScheduler": {},
    "HeunDiscreteScheduler": {},  # two calls a step
    "IPNDMScheduler": {},  # noise unknown to us
    "KDPM2DiscreteScheduler": {},  # two calls a step, noise unknown to us
    "LCMScheduler": {},
    "LMSDiscreteScheduler": {},
    "PNDMScheduler": {"skip_prk_steps": True},  # one step more than asked for
    "SASolverScheduler": {},
    "TCDScheduler": {},
    "UniPCMultistepScheduler": {},
}
QUICK_SCHEDULERS = {"DDPMScheduler", "HeunDiscreteScheduler", "IPNDMScheduler", "LCMScheduler", "PNDMScheduler"}

# Guidance, one of its branches or a ControlNet sets in or ends on the way; or another expert takes over.
CHANGING = {
    "flux_controlnet",
    "lumina_2_guided_half_way",
    "sd3_skip_layer_guidance",
    "sd_controlnet",
    "wan_22_two_experts",
    "z_image_guided_half_way",
}

# One of each: a U-Net and a transformer, latents in parts or whole, guidance by batch, by call, late or by a branch
# more, a run that begins late, two experts, conditions beside the text, clips, sound, and no guidance at all.
QUICK = {
    "animate_diff",
    "flux_2",
    "flux_ip_adapter",
    "hunyuan_video_15",
    "latent_consistency",
    "lumina_2_guided_half_way",
    "sd3_skip_layer_guidance",
    "sd_img2img",
    "stable_audio",
    "wan_22_two_experts",
    "z_image_guided_half_way",
}

GUIDANCE_OFF = {"lumina_2_guided_half_way": 1.0, "z_image_guided_half_way": 0.0}

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast, but the target dtype:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(params=sweep(sorted(PIPELINES), quick=QUICK))
def named(request: pytest.FixtureRequest) -> tuple[str, Tiny]:
    return request.param, PIPELINES[request.param]()


def calls_of(tiny: Tiny) -> list[Any]:
    """Grows by one with each forward of a denoiser."""
    calls: list[Any] = []
    for denoiser in denoisers_of(tiny.pipe):
        denoiser.register_forward_hook(lambda *_: calls.append(1))
    return calls


def check_region(tiny: Tiny, full: torch.Tensor, region: str) -> omnireuse.Summary:
    """Exact when computing, finite and different when half is reused, exact again afterwards."""
    with omnireuse.enable(tiny.pipe, policy="never", region=region) as handle:
        assert torch.equal(tiny.run(), full)
        computed = handle.summary()
    assert (computed.reused_calls, computed.calls_outside, computed.runs) == (0, 0, 1)
    steps = computed.steps
    with omnireuse.enable(tiny.pipe, policy=Spread(num_computed=steps // 2), region=region) as handle:
        reusing = tiny.run()
        assert torch.equal(tiny.run(), reusing)
    assert torch.isfinite(reusing).all()
    assert not torch.equal(reusing, full)
    assert torch.equal(tiny.run(), full)
    summary = handle.summary()
    assert (summary.calls_outside, summary.runs, summary.steps) == (0, 2, 2 * steps)
    return summary


@pytest.mark.parametrize("region", ["step", "call"])
def test_pipelines(named: tuple[str, Tiny], region: str) -> None:
    name, tiny = named
    full = tiny.run()
    assert torch.isfinite(full).all()
    calls = calls_of(tiny)
    tiny.run()
    every = len(calls)
    summary = check_region(tiny, full, region)
    steps = summary.steps // 2
    if name in CHANGING:
        # What was remembered is dropped at the change, so that one step more computes.
        assert steps // 2 <= summary.computed_steps <= steps // 2 + 1
    else:
        assert summary.computed_steps == steps // 2
        # Runs that computed everything: never, and the last; and two that reused.
        assert len(calls) == 3 * every + 2 * every * (steps // 2) // steps


@pytest.mark.parametrize("region", ["step", "call"])
@pytest.mark.parametrize("scheduler", sweep(sorted(SCHEDULERS), quick=QUICK_SCHEDULERS))
def test_schedulers(scheduler: str, region: str) -> None:
    tiny = unet.with_scheduler(getattr(diffusers, scheduler), **SCHEDULERS[scheduler])
    full = tiny.run()
    summary = check_region(tiny, full, region)
    steps = summary.steps // 2
    assert summary.computed_steps == steps // 2
    assert steps == len(tiny.pipe.scheduler.timesteps)


@pytest.mark.parametrize("name", sweep(sorted(TRANSFORMERS), quick=QUICK & TRANSFORMERS))
def test_blocks_of_pipelines(name: str) -> None:
    tiny = PIPELINES[name]()
    summary = check_region(tiny, tiny.run(), "blocks")
    steps = summary.steps // 2
    assert steps // 2 <= summary.computed_steps <= steps // 2 + (name in CHANGING)


@pytest.mark.parametrize("scheduler", ["DDIMScheduler", "DPMSolverMultistepScheduler"])
def test_a_run_that_begins_late_has_the_noise_of_its_own_steps(scheduler: str) -> None:
    # DDIM is not told where an image-to-image run begins.
    tiny = PIPELINES["sd_img2img"]()
    tiny.pipe.scheduler = getattr(diffusers, scheduler)(steps_offset=1)
    with omnireuse.enable(tiny.pipe, policy="never") as handle:
        tiny.run(steps=8)
    begin = 2  # of strength 0.75
    levels = noise_levels(tiny.pipe.scheduler)[begin:]
    assert [event.sigma for event in handle.events] == [level.sigma for level in levels]


def test_another_expert_starts_from_nothing() -> None:
    tiny = PIPELINES["wan_22_two_experts"]()
    schedule = Steps(steps=(0, 5))
    with omnireuse.enable(tiny.pipe, policy=schedule) as handle:
        tiny.run()
    switch = int((tiny.pipe.scheduler.timesteps >= 0.8 * 1000).sum())
    assert 0 < switch < 5
    assert [(event.step, event.reason) for event in handle.events if not event.reused] == [
        (0, "first"),
        (switch, "layout"),
        (5, "last"),
    ]


def test_a_scheduler_whose_noise_is_unknown_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    tiny = unet.with_scheduler(diffusers.IPNDMScheduler)
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(tiny.pipe, speedup=2):
        tiny.run()
    assert "raw output instead of x0 in this run: the noise of its scheduler is not known" in caplog.text


@pytest.mark.parametrize("name", ["lumina_2_guided_half_way", "z_image_guided_half_way"])
def test_calls_whose_output_the_pipeline_negates_agree_with_steps(name: str) -> None:
    # Without guidance the two regions remember the same, whatever sign the model's output has.
    tiny = PIPELINES[name]()
    results = []
    for region in ("step", "call"):
        strategy = {
            "policy": EveryNth(every=2, warmup=2),
            "forecaster": Polynomial(order=1),
            "prediction_target": "x0",
        }
        with omnireuse.enable(tiny.pipe, region=region, **strategy):
            results.append(tiny.run(steps=7, guidance_scale=GUIDANCE_OFF[name]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)


def test_lists_of_latents_are_watched() -> None:
    tiny = PIPELINES["z_image_guided_half_way"]()
    with omnireuse.enable(tiny.pipe, policy=TeaCache(rel_l1_thresh=1.0), region="step") as handle:
        tiny.run()
    assert all(event.drift is not None for event in handle.events if event.step in (1, 2))
    assert handle.summary().reused_calls > 0


class SoundPipeline:
    """As LTX-2 samples: one denoiser for frames and sound, and a copy of the scheduler for the sound."""

    def __init__(self) -> None:
        self.transformer = DENOISERS["LTX2VideoTransformer3DModel"]()
        self.inputs, self.transformer = self.transformer.inputs, self.transformer.model
        self.scheduler = FlowMatchEulerDiscreteScheduler()
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    @torch.no_grad()
    def run(self, steps: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
        given = self.inputs(0, 6)
        frames, sound = given.pop("hidden_states"), given.pop("audio_hidden_states")
        audio_scheduler = copy.deepcopy(self.scheduler)
        for scheduler in (audio_scheduler, self.scheduler):
            scheduler.set_timesteps(steps)
        self.seen.clear()
        for t in self.scheduler.timesteps:
            times = {"timestep": t[None], "sigma": t[None]}
            latents = {"hidden_states": frames, "audio_hidden_states": sound}
            of_frames, of_sound = self.transformer(**given | latents | times)
            self.seen.append((sound, of_sound))
            frames = self.scheduler.step(of_frames, t, frames)[0]
            sound = audio_scheduler.step(of_sound, t, sound)[0]
        return frames, sound


def test_sound_beside_frames_is_forecast_in_region_call_and_refused_in_region_step() -> None:
    pipeline = SoundPipeline()
    full = pipeline.run()
    with (
        omnireuse.enable(pipeline, policy="fixed", region="step"),
        pytest.raises(UnsupportedModelError, match=r"one kind of latents, got 2.*use region='call'"),
    ):
        pipeline.run()
    with omnireuse.enable(pipeline, policy="never", region="call", prediction_target="x0"):
        assert all(map(torch.equal, pipeline.run(), full))
    with omnireuse.enable(pipeline, policy=Steps(steps=(0, 1)), region="call", prediction_target="x0"):
        pipeline.run()
    sigmas = pipeline.scheduler.sigmas
    x0 = pipeline.seen[1][0] - sigmas[1] * pipeline.seen[1][1]
    for step in (2, 3, 4):
        sound, output = pipeline.seen[step]
        torch.testing.assert_close(output, (sound - x0) / sigmas[step], rtol=1e-4, atol=1e-4)
    assert all(map(torch.equal, pipeline.run(), full))


def test_a_pipeline_with_sound_is_served_by_default(caplog: pytest.LogCaptureFixture) -> None:
    tiny = video.ltx_2()
    full = tiny.run()
    with omnireuse.enable(tiny.pipe, policy="never", region="call"):
        assert torch.equal(tiny.run(), full)
    # The default computes so short a run whole.
    for wish, computed in (({}, 6), ({"speedup": 2.0}, 3), ({"computed_steps": 3}, 3)):
        with caplog.at_level(logging.INFO, "omnireuse"), omnireuse.enable(tiny.pipe, **wish) as handle:
            assert torch.equal(tiny.run(), full) == (computed == 6)
        assert (handle.strategy.region, handle.summary().computed_steps, handle.summary().steps) == (
            "call",
            computed,
            6,
        )
        assert "LTX2VideoTransformer3DModel makes several kinds of latents" in caplog.text
        caplog.clear()
    assert torch.equal(tiny.run(), full)


class TwoDenoisers:
    """As Ideogram 4 samples: a transformer of its own for the unguided branch."""

    def __init__(self) -> None:
        made = DENOISERS["Ideogram4Transformer2DModel"]
        guided, unguided = made(), made()
        self.transformer, self.unconditional_transformer, self.inputs = guided.model, unguided.model, guided.inputs
        self.scheduler = FlowMatchEulerDiscreteScheduler()

    @torch.no_grad()
    def run(self, steps: int = 6) -> torch.Tensor:
        given = self.inputs(0, 6)
        latents = given.pop("hidden_states")
        self.scheduler.set_timesteps(steps)
        for t in self.scheduler.timesteps:
            given["timestep"] = t[None] / 1000
            outputs = [
                denoiser(hidden_states=latents, **given)[0]
                for denoiser in (self.transformer, self.unconditional_transformer)
            ]
            latents = self.scheduler.step(3 * outputs[0] - 2 * outputs[1], t, latents)[0]
        return latents


@pytest.mark.parametrize("region", ["step", "call", "blocks"])
def test_a_transformer_for_the_unguided_branch_is_reused_too(region: str) -> None:
    pipeline = TwoDenoisers()
    full = pipeline.run()
    calls: list[Any] = []
    pipeline.unconditional_transformer.layers[0].register_forward_hook(lambda *_: calls.append(1))
    with omnireuse.enable(pipeline, policy="never", region=region):
        assert torch.equal(pipeline.run(), full)
    with omnireuse.enable(pipeline, policy=Spread(num_computed=3), region=region) as handle:
        assert not torch.equal(pipeline.run(), full)
    assert handle.summary().computed_steps == 3
    assert region == "blocks" or len(calls) == 6 + 3
    assert torch.equal(pipeline.run(), full)


def test_region_step_needs_a_scheduler() -> None:
    # As UnCLIP, whose schedulers have other names.
    tiny = unet.with_scheduler(diffusers.DDIMScheduler)
    tiny.pipe.scheduler = None
    with pytest.raises(
        UnsupportedModelError, match=r"scheduler must have set_timesteps and step, got None.*region='call'"
    ):
        omnireuse.enable(tiny.pipe)
