"""A profile's plan in a loop without a pipeline."""

from __future__ import annotations

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from omnireuse import Generation, Profile, layout_of, noise_levels
from omnireuse.errors import ConfigError
from tests import TOP

PROFILE = Profile.load(TOP / "models" / "shapes-flux" / "profiles" / "shapes-flux-28-guided.json")


@pytest.mark.parametrize("target", [{"computed_steps": 14}, {"speedup": 2}, {}])
def test_a_loop_follows_the_plan(target: dict[str, int]) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=list(PROFILE.coordinates))
    generation = Generation(PROFILE.strategy(**target), noise_levels(scheduler))
    latents, computed = torch.randn(1, 4, 8), []
    for step, timestep in enumerate(scheduler.timesteps):
        choice = generation.decide(layout=layout_of(latents))
        if choice.reuse:
            output = generation.carry_out(choice, None, latents)
        else:
            output = generation.carry_out(choice, latents - torch.tanh(latents), latents)
            computed.append(step)
        latents = scheduler.step(output, timestep, latents, return_dict=False)[0]
        generation.advance()
    assert tuple(computed) == PROFILE.plans[14].steps


def test_one_target_is_given() -> None:
    with pytest.raises(ConfigError, match="profile: give one of speedup and"):
        PROFILE.strategy(speedup=2, computed_steps=14)
