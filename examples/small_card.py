"""What fits on a small card: modulation is computed once, and its weights leave the process's memory.

Two blocks of Flux with random weights draw a few pictures. The weights that see only the timestep then go to a file
that is mapped, and the pictures keep their bits. On a GPU, `release="cpu"` frees the same bytes of the device: a
third of the weights of Qwen-Image.

Run: python examples/small_card.py [--width 16] [--steps 4]
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel

import omnireuse


def new_model(heads: int) -> FluxTransformer2DModel:
    """A Flux with random weights."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    sizes = {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": heads, "pooled_projection_dim": 32}
    model = FluxTransformer2DModel(**sizes)
    torch.set_default_dtype(torch.float32)
    return model.eval()


@torch.no_grad()
def draw(model: FluxTransformer2DModel, steps: int) -> torch.Tensor:
    """The latents of one picture."""
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(steps)
    draws = torch.Generator().manual_seed(1)
    latents = torch.randn(1, 64, 64, generator=draws, dtype=torch.bfloat16)
    text = torch.randn(1, 16, model.config.joint_attention_dim, generator=draws, dtype=torch.bfloat16)
    pooled = torch.randn(1, 32, generator=draws, dtype=torch.bfloat16)
    for timestep in scheduler.timesteps:
        output = model(
            latents,
            text,
            pooled,
            timestep.expand(1) / 1000,
            torch.zeros(64, 3),
            torch.zeros(16, 3),
            return_dict=False,
        )[0]
        latents = scheduler.step(output, timestep, latents, return_dict=False)[0]
    return latents


def memory() -> float:
    """MiB of this process that no file backs; 0 if the system does not tell."""
    status = Path("/proc/self/status")
    found = re.search(r"RssAnon:\s+(\d+)", status.read_text("utf-8")) if status.exists() else None
    return int(found[1]) / 1024 if found else 0.0


def main(arguments: list[str] | None = None) -> None:
    """Draw without and with the cache, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=16, help="attention heads of 128 channels; Flux has 24")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args(arguments)
    model = new_model(options.width)
    want, before = draw(model, options.steps), memory()
    cache = omnireuse.install_modulation_cache(model, release="disk")
    assert cache is not None
    pictures = [draw(model, options.steps) for _ in range(3)]
    print(cache.summary())
    print(f"memory: {before:.0f} MiB before, {memory():.0f} MiB now")
    print(f"same bits: {all(torch.equal(each, want) for each in pictures)}")


if __name__ == "__main__":
    main()
