"""Loops of one's own: an object with a denoiser, a scheduler and a call is tuned as a pipeline of diffusers is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse

STEPS = 24


class Field(torch.nn.Module):
    """A smooth velocity, which depends on a condition."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(8, 8, generator=generator) / 3, requires_grad=False)
        self.calls = 0

    def forward(self, latents: torch.Tensor, noise: float, condition: float) -> torch.Tensor:
        self.calls += 1
        return latents - torch.tanh(latents @ self.weight + noise + condition)


class Guided(torch.nn.Module):
    """A model function with both branches of guidance in it."""

    def __init__(self) -> None:
        super().__init__()
        self.field = Field()

    def forward(self, latents: torch.Tensor, noise: float, condition: float, scale: float) -> torch.Tensor:
        wanted, plain = self.field(latents, noise, condition), self.field(latents, noise, 0.0)
        return plain + scale * (wanted - plain)


class Loop:
    """A loop of one's own; guidance is in the loop, or in the model."""

    def __init__(self, transformer: torch.nn.Module) -> None:
        self.transformer, self.scheduler = transformer, FlowMatchEulerDiscreteScheduler()

    def __call__(self, latents: torch.Tensor, seed: int, *, guidance_scale: float = 2.0) -> torch.Tensor:
        return self.sample(latents, seed, guidance_scale)

    def sample(self, latents: torch.Tensor, seed: int, guidance_scale: float) -> torch.Tensor:
        condition = 0.1 * seed
        self.scheduler.set_timesteps(STEPS)
        for timestep in self.scheduler.timesteps:
            noise = float(timestep) / 1000
            if isinstance(self.transformer, Guided):
                output = self.transformer(latents, noise, condition, guidance_scale)
            else:
                plain = self.transformer(latents, noise, 0.0)
                output = plain + guidance_scale * (self.transformer(latents, noise, condition) - plain)
            # In place, as loops that save memory write: a trial run must not change the caller's tensors.
            latents.copy_(self.scheduler.step(output, timestep, latents, return_dict=False)[0])
        return latents


def noise_of(seed: int) -> torch.Tensor:
    return torch.randn(1, 12, 8, generator=torch.Generator().manual_seed(seed))


def run(loop: Loop, seed: int, **call: Any) -> torch.Tensor:
    return loop(noise_of(seed), seed, **call).clone()


@pytest.mark.parametrize("model", [Field, Guided])
def test_a_loop_of_ones_own_is_measured_tuned_and_kept(model: type[torch.nn.Module], cache: Path) -> None:
    loop = Loop(model())
    full = [run(loop, seed) for seed in range(5)]
    with omnireuse.enable(loop) as handle:
        for seed in range(3):
            assert torch.equal(run(loop, seed), full[seed])
        assert handle.tuning.state == "ready", handle.tuning
        assert len(list(cache.glob("tuned/*.json"))) == 1
        later = run(loop, 3)
        assert not torch.equal(later, full[3])
        assert float((later - full[3]).abs().mean() / full[3].abs().mean()) < 0.01
    assert torch.equal(run(loop, 4), full[4])
    again = Loop(model())
    field = again.transformer.field if isinstance(again.transformer, Guided) else again.transformer
    with omnireuse.enable(again) as handle:
        field.calls = 0
        assert torch.equal(run(again, 3), later)
        assert handle.tuning.state == "ready"
        assert field.calls == STEPS, "half of the steps, both branches"


def test_the_key_is_weights_and_arguments_but_no_noise() -> None:
    loop = Loop(Field())
    with omnireuse.enable(loop) as handle:
        for seed in range(3):
            run(loop, seed)
        assert handle.tuning.state == "ready", "seeds and latents are contents"
        run(loop, 3, guidance_scale=4.0)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 1)
    other = Loop(Field(seed=1))
    with omnireuse.enable(other) as handle:
        run(other, 0)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 1)


def test_a_loop_that_no_call_makes_is_served_untuned_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "omnireuse")
    loop = Loop(Field())
    with omnireuse.enable(loop) as handle:
        for seed in range(2):
            loop.sample(noise_of(seed), seed, 2.0)
        assert handle.tuning.state == "off"
        assert "put it into __call__ of an object" in handle.tuning.reason
        assert handle.summary().reused_calls > 0
        run(loop, 0)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 1)
    assert caplog.text.count("tuning is off") == 1
