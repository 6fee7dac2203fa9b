"""A model that no adapter declares, the extractor that takes it apart, and a sampling loop without a pipeline."""

from __future__ import annotations

import torch

from omnireuse.diffusion.cache.teacache import CacheContext

__all__ = ["IDENTITY", "Foreign", "denoise", "take_apart"]

# TeaCache's polynomial that changes nothing.
IDENTITY = (0.0, 0.0, 0.0, 1.0, 0.0)


class Foreign(torch.nn.Module):
    """A small two-stream model that no adapter declares."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Linear(4, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.out = torch.nn.Linear(8, 4)
        self.ran = 0

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        context = take_apart(self, hidden_states, timestep, text)
        return context.postprocess(context.run_transformer_blocks()[0])


def take_apart(
    module: Foreign, hidden_states: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor
) -> CacheContext:
    hidden = module.embed(hidden_states)
    temb = timestep.reshape(-1, 1).expand(len(hidden), 8)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        module.ran += 1
        h, t = hidden, text
        for block in module.blocks:
            h, t = h + torch.tanh(block(h) + temb[:, None]), t + 0.1 * h.mean(1, keepdim=True)
        return h, t

    return CacheContext(
        modulated_input=hidden * (1 + temb[:, None]),
        hidden_states=hidden,
        encoder_hidden_states=text,
        temb=temb,
        run_transformer_blocks=run,
        postprocess=module.out,
    )


@torch.no_grad()
def denoise(module: Foreign, steps: int = 8) -> torch.Tensor:
    latents = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0))
    for t in torch.linspace(1, 0.1, steps):
        latents = latents - module(latents, timestep=t[None], text=torch.ones(1, 3, 8)) / steps
    return latents
