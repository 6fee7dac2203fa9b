"""`torch.compile` around a denoiser."""

from __future__ import annotations

import torch

from omnireuse.diffusion.reuse.runtime.interception import compiled_call
from omnireuse.diffusion.reuse.runtime.wrappers import is_optimized, wrapped_modules

__all__ = ["is_compiled_whole"]


def is_compiled_whole(module: torch.nn.Module) -> bool:
    """Whether `torch.compile` makes one graph of this denoiser, blocks and all."""
    return any(is_optimized(each) or compiled_call(each) is not None for each in wrapped_modules(module))
