"""What is watched between steps, and how its change is measured.

A change is a (numerator, denominator) pair, so that a sum over ranks, uneven shards included, gives what one machine
would have measured.
"""

from __future__ import annotations

import torch

__all__ = ["SIGNALS", "change_of", "magnitude"]

SIGNALS = {
    "expected_output": "the remembered value, whose change is expected from that of the latents",
    "filtered_latents": "the latents, weighted by how far each frequency stands out of the noise",
    "first_residual": "what the first blocks, which always run, added to their input",
    "latents": "the tensor that the denoiser was called with",
    "modulated_input": "the normalised, modulated input of the first block, as the model's adapter reads it",
    "none": "nothing: for policies that need no measurement",
}


def change_of(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Relative L1 change as a pair: (Σ|now − before|, Σ|before|), float32, shape (2,), on the tensors' device."""
    before = before.float()
    return torch.stack(((now.float() - before).abs().sum(), before.abs().sum()))


def magnitude(*values: torch.Tensor) -> torch.Tensor:
    """Mean absolute value over all elements of all tensors, a float32 scalar on their device."""
    total = torch.stack([value.float().abs().sum() for value in values]).sum()
    return total / max(sum(value.numel() for value in values), 1)
