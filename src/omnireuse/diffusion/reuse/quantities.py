"""What is remembered of a computed step, and how the model's output is won back from it."""

from __future__ import annotations

import torch

from omnireuse.diffusion.reuse.noise import NoiseLevel

__all__ = ["QUANTITIES", "can_denoise", "denoised", "output_of"]

QUANTITIES = {
    "output": "the tensor itself",
    "residual": "what the block stack added to its input",
    "x0": "the denoised sample, from the output, the latents and the noise level",
}


def can_denoise(level: NoiseLevel, sample: torch.Tensor | None, output: torch.Tensor) -> bool:
    """Whether x0 is defined here: a known algebra, noise left, and a sample of the output's shape."""
    return (
        level.sample_weight is not None
        and bool(level.output_weight)
        and sample is not None
        and sample.shape == output.shape
        and output.is_floating_point()
    )


def denoised(level: NoiseLevel, sample: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """x0 = a · sample + b · output, in float32 at least: differences of x0 are small beside its terms."""
    assert level.sample_weight is not None
    assert level.output_weight is not None
    dtype = torch.promote_types(output.dtype, torch.float32)
    return torch.add(sample.to(dtype) * level.sample_weight, output.to(dtype), alpha=level.output_weight)


def output_of(level: NoiseLevel, sample: torch.Tensor, x0: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The model output that `denoised` would turn into `x0`: (x0 − a · sample) / b."""
    assert level.sample_weight is not None
    assert level.output_weight is not None
    return torch.sub(x0, sample.to(x0.dtype), alpha=level.sample_weight).div_(level.output_weight).to(dtype)
