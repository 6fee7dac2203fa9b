"""Tuning of a sampling loop of your own: an object with a denoiser, a scheduler and `__call__` is a pipeline.

    python examples/tuned_loop.py

The first three latents are computed in full, bit for bit as without omnireuse. Soon after them, and from the first
on in the next process, omnireuse follows the plan that left the least error in three of them.
"""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse

STEPS = 28


class Denoiser(torch.nn.Module):
    """Stands for a model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.outward = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, latents: torch.Tensor, noise: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
        """The velocity."""
        return latents - self.outward(torch.tanh(self.inward(latents) + noise + embeds))


class Sampler:
    """The loop, with guidance of its own. All that changes how it computes is an argument of its call."""

    def __init__(self, transformer: torch.nn.Module) -> None:
        self.transformer, self.scheduler = transformer, FlowMatchEulerDiscreteScheduler()

    @torch.no_grad()
    def __call__(
        self, prompt_embeds: torch.Tensor, latents: torch.Tensor, *, steps: int = STEPS, guidance_scale: float = 3.0
    ) -> torch.Tensor:
        """The final latents."""
        self.scheduler.set_timesteps(steps)
        for timestep in self.scheduler.timesteps:
            noise = timestep / 1000
            wanted = self.transformer(latents, noise, prompt_embeds)
            plain = self.transformer(latents, noise, torch.zeros_like(prompt_embeds))
            output = plain + guidance_scale * (wanted - plain)
            latents = self.scheduler.step(output, timestep, latents, return_dict=False)[0]
        return latents


def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of a prompt, and noise."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 1, 64, generator=generator), torch.randn(1, 32, 16, generator=generator)


if __name__ == "__main__":
    sampler = Sampler(Denoiser())
    full = [sampler(*inputs(seed)) for seed in range(10)]
    with omnireuse.enable(sampler) as handle:
        for seed, true in enumerate(full):
            made = sampler(*inputs(seed))
            error = float((made - true).abs().mean() / true.abs().mean())
            print(f"latents {seed}: error {error:.3%}; {handle.tuning}")
