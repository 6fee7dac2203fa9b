"""Reuse in a sampling loop of your own: no pipeline, no hooks.

    python examples/own_loop.py

The loop asks two questions at each step: does it compute, and what does the solver get? A `Generation` is the state of
one generation, which an engine can keep in its own request, copy, move between devices and free.
"""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from omnireuse import Generation, Spread, Strategy, noise_levels

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
    for step, timestep in enumerate(scheduler.timesteps):
        computes = generation.computes(step, latents)
        output = denoiser(latents, generation.level.coordinate) if computes else None
        output = generation.use(output, latents)  # the given one, a corrected one, or a forecast
        latents = scheduler.step(output, timestep, latents, return_dict=False)[0]
        computed += computes
    generation.finish()
    return latents, computed


if __name__ == "__main__":
    full, _ = sample(Strategy(policy=Spread(speedup=1.0)))
    reused, computed = sample(Strategy.default(speedup=2.0))
    error = float((reused - full).abs().mean() / full.abs().mean())
    print(f"{computed} of {STEPS} steps computed; the latents differ by {error:.2%}")
