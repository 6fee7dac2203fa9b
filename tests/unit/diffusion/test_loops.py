"""Which step a call belongs to, in loops of a user's own over a pipeline's parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler, PNDMScheduler
from hypothesis import given
from hypothesis import strategies as st

import omnireuse
from omnireuse import EveryNth, noise_levels
from tests.helpers.tiny import stable_diffusion
from tests.models.diffusion.pipelines import unet

EMBEDS = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(1))


class Denoiser(torch.nn.Module):
    """Smooth in the latents and in time; `scale` is what a pipeline multiplies its timesteps by."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, sample: torch.Tensor, timestep: Any) -> torch.Tensor:
        self.calls += 1
        return torch.sin(sample) + 0.1 * float(torch.as_tensor(timestep).max()) ** 0.5


def start(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def told(handle: omnireuse.Handle) -> list[float | None]:
    return [event.sigma for event in handle.events]


@torch.no_grad()
def loop(
    pipe: Any,
    steps: int,
    part: slice,
    *,
    scale: float = 1.0,
    between: Callable[[int], object] = lambda _: None,
) -> torch.Tensor:
    """As in diffusers' tutorials: no `set_begin_index`."""
    scheduler = pipe.scheduler
    scheduler.set_timesteps(steps)
    latents = start(1, 4)
    for index, time in enumerate(scheduler.timesteps[part]):
        scaled = scheduler.scale_model_input(latents, time) if hasattr(scheduler, "scale_model_input") else latents
        output = pipe.transformer(scaled, time if scale == 1 else time * scale)
        latents = scheduler.step(output, time, latents, return_dict=False)[0]
        between(index)
    return latents


SCHEDULERS: dict[str, tuple[Callable[[], Any], float]] = {
    "euler": (EulerDiscreteScheduler, 1.0),
    "ddim": (functools.partial(DDIMScheduler, clip_sample=False), 1.0),
    "flow": (functools.partial(FlowMatchEulerDiscreteScheduler, shift=3.0), 1.0),
}


@pytest.mark.parametrize("region", ["step", "call"])
@pytest.mark.parametrize("begin", [0, 20, 37])
@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_a_loop_over_the_last_timesteps_has_their_noise_levels(name: str, begin: int, region: str) -> None:
    make, scale = SCHEDULERS[name]
    pipe = SimpleNamespace(transformer=Denoiser(), scheduler=make())
    run = functools.partial(loop, pipe, 40, slice(begin, None), scale=scale)
    full = run()
    with omnireuse.enable(pipe, policy="never", region=region) as handle:
        assert torch.equal(run(), full)
    right = [level.sigma for level in noise_levels(pipe.scheduler)][begin:]
    assert told(handle) == right
    assert {event.total for event in handle.events} == {40 - begin}
    assert handle.events[-1].reason == "last"
    assert handle.summary().aborted == 0


def test_a_loop_after_a_call_with_fewer_steps_has_its_own_steps() -> None:
    tiny = stable_diffusion()
    pipe = tiny.pipe
    pipe.scheduler = EulerDiscreteScheduler()

    @torch.no_grad()
    def own() -> None:
        pipe.scheduler.set_timesteps(50)
        latents = start(1, 4, 8, 8) * pipe.scheduler.init_noise_sigma
        for time in pipe.scheduler.timesteps:
            output = pipe.unet(
                pipe.scheduler.scale_model_input(latents, time), time, encoder_hidden_states=EMBEDS, return_dict=False
            )
            latents = pipe.scheduler.step(output[0], time, latents, return_dict=False)[0]

    with omnireuse.enable(pipe, speedup=2, tune=False) as handle:
        tiny.run(steps=28)
        before = handle.summary()
        own()
        summary = handle.summary()
    assert summary.calls_outside == before.calls_outside
    assert summary.steps - before.steps == 50
    assert {event.total for event in handle.events if event.run == 2} == {50}


@pytest.mark.parametrize("strength", [0.96, 0.9, 0.5])
def test_image_to_image_whose_first_timestep_occurs_twice_has_its_noise_levels(strength: float) -> None:
    tiny = unet.PIPELINES["sd_img2img"]()
    tiny.pipe.scheduler = PNDMScheduler(skip_prk_steps=True)
    with omnireuse.enable(tiny.pipe, policy="never") as handle:
        tiny.run(steps=50, strength=strength)
    assert told(handle) == [level.sigma for level in noise_levels(tiny.pipe.scheduler)][-len(handle.events) :]


@pytest.mark.parametrize("begin", [0, 1, 2])
def test_a_loop_over_equal_timesteps_is_right_from_the_step_on_that_shows_it(begin: int) -> None:
    pipe = SimpleNamespace(transformer=Denoiser(), scheduler=PNDMScheduler(skip_prk_steps=True))
    with omnireuse.enable(pipe, policy="never") as handle:
        loop(pipe, 20, slice(begin, None))
    levels = [level.sigma for level in noise_levels(pipe.scheduler)]
    assert told(handle)[-10:] == levels[-10:]


@pytest.mark.parametrize("region", ["step", "call"])
def test_a_preview_between_two_steps_is_passed_on(region: str) -> None:
    pipe = SimpleNamespace(transformer=Denoiser(), scheduler=FlowMatchEulerDiscreteScheduler())
    seen: list[tuple[torch.Tensor, int]] = []

    def between(index: int) -> None:
        if index in (5, 6, 11, 14):
            seen.append((pipe.transformer(start(1, 4) * index, torch.zeros(1)), index))

    def policy() -> Any:
        return omnireuse.Strategy(policy=EveryNth(every=2), forecaster=omnireuse.Blend(), region=region)

    with omnireuse.enable(pipe, policy()):
        without = loop(pipe, 20, slice(None))
    with omnireuse.enable(pipe, policy()) as handle:
        assert torch.equal(loop(pipe, 20, slice(None), between=between), without)
    assert handle.summary().calls_outside == 4
    for value, index in seen:
        assert torch.equal(value, pipe.transformer(start(1, 4) * index, torch.zeros(1)))


def test_a_loop_that_goes_on_elsewhere_forgets_what_it_remembers() -> None:
    pipe = SimpleNamespace(transformer=Denoiser(), scheduler=DDIMScheduler(clip_sample=False))

    @torch.no_grad()
    def run() -> torch.Tensor:
        pipe.scheduler.set_timesteps(40)
        latents = start(1, 4)
        for time in [*pipe.scheduler.timesteps[:10], *pipe.scheduler.timesteps[20:]]:
            output = pipe.transformer(latents, torch.tensor([1.0]))
            latents = pipe.scheduler.step(output, time, latents, return_dict=False)[0]
        return latents

    full = run()
    with omnireuse.enable(pipe, policy="never") as handle:
        assert torch.equal(run(), full)
    assert told(handle)[-15:] == [level.sigma for level in noise_levels(pipe.scheduler)][-15:]
    assert handle.summary().fallbacks == {"the memory of another step": 1}


@pytest.mark.parametrize("region", ["step", "call"])
def test_a_loop_that_scales_its_timesteps_shows_where_it_begins_at_its_first_step(region: str) -> None:
    pipe = SimpleNamespace(transformer=Denoiser(), scheduler=FlowMatchEulerDiscreteScheduler())
    run = functools.partial(loop, pipe, 40, slice(20, None), scale=1e-3)
    full = run()
    with omnireuse.enable(pipe, policy="never", region=region) as handle:
        assert torch.equal(run(), full)
    assert told(handle)[-19:] == [level.sigma for level in noise_levels(pipe.scheduler)][21:]
    assert handle.summary().fallbacks == {"the memory of another step": 1}


@given(
    begin=st.integers(0, 8),
    count=st.integers(10, 16),
    previews=st.sets(st.integers(0, 15), max_size=5),
    shift=st.sampled_from([1.0, 3.0]),
    calls=st.integers(1, 3),
)
def test_any_loop_has_the_steps_of_its_scheduler(
    begin: int, count: int, previews: set[int], shift: float, calls: int
) -> None:
    pipe = SimpleNamespace(transformer=Denoiser(), scheduler=FlowMatchEulerDiscreteScheduler(shift=shift))
    with torch.no_grad(), omnireuse.enable(pipe, policy="never", region="call") as handle:
        pipe.scheduler.set_timesteps(count)
        latents = start(1, 4)
        times = pipe.scheduler.timesteps[begin:]
        for index, time in enumerate(times):
            for _ in range(calls):
                output = pipe.transformer(latents, time.expand(1))
            latents = pipe.scheduler.step(output, time, latents, return_dict=False)[0]
            if index in previews and index + 1 < len(times):
                pipe.transformer(start(1, 4), torch.tensor([-1.0]))
    levels = [level.sigma for level in noise_levels(pipe.scheduler)][begin:]
    assert told(handle) == [sigma for sigma in levels for _ in range(calls)]
    assert handle.summary().calls_outside == len([i for i in previews if i < len(times) - 1])


class Own:
    """A scheduler of a user's own, without a configuration."""

    def __init__(self, timesteps: Any) -> None:
        self._made, self.timesteps = timesteps, None

    def set_timesteps(self, steps: int) -> None:
        self.timesteps = self._made(steps)

    def step(self, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor) -> tuple[torch.Tensor]:
        return (sample - model_output / 10,)


@pytest.mark.parametrize(
    "timesteps",
    [lambda n: list(range(n, 0, -1)), lambda n: torch.linspace(1, 0.1, n), lambda n: torch.ones(n, 2)],
)
def test_a_scheduler_of_a_users_own_is_served(timesteps: Any) -> None:
    pipe = SimpleNamespace(transformer=Denoiser(), scheduler=Own(timesteps))

    @torch.no_grad()
    def run() -> torch.Tensor:
        pipe.scheduler.set_timesteps(12)
        latents = start(1, 4)
        for time in pipe.scheduler.timesteps:
            latents = pipe.scheduler.step(pipe.transformer(latents, time), time, latents)[0]
        return latents

    full = run()
    with omnireuse.enable(pipe, policy="never", region="call") as handle:
        assert torch.equal(run(), full)
    assert [event.step for event in handle.events] == list(range(12))
