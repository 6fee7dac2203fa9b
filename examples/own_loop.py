"""Reuse in a sampling loop of your own: no pipeline, no hooks.

    python examples/own_loop.py

The loop asks what to do at each step and tells what was done. A `Generation` is the state of one generation, which
an engine can keep in its own request, copy, move between devices and free.
"""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from omnireuse import Generation, Spread, Strategy, layout_of, noise_levels

STEPS = 28


def denoiser(latents: torch.Tensor, noise: float) -> torch.Tensor:
    """Stands for a model: the velocity towards a smooth field."""
    return (latents - torch.tanh(latents.mean(-1, keepdim=True))) / max(noise, 1e-3)


def sample(strategy: Strategy) -> tuple[torch.Tensor, int]:
    """The final latents, and how many steps were computed."""
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS)
    latents = torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(0))
    generation, computed = Generation(strategy, noise_levels(scheduler)), 0
    for timestep in scheduler.timesteps:
        choice = generation.decide(layout=layout_of(latents))
        if choice.reuse:
            output = generation.predict(choice, latents)
        else:
            output = generation.observe(choice, denoiser(latents, generation.level.coordinate), latents)
            computed += 1
        latents = scheduler.step(output, timestep, latents, return_dict=False)[0]
        generation.advance()
    generation.finish()
    return latents, computed


if __name__ == "__main__":
    full, _ = sample(Strategy(policy=Spread(speedup=1.0)))
    reused, computed = sample(Strategy.default(speedup=2.0))
    error = float((reused - full).abs().mean() / full.abs().mean())
    print(f"{computed} of {STEPS} steps computed; the latents differ by {error:.2%}")
