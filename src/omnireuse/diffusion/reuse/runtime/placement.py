"""Where a pipeline computes, and in which precision."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of

__all__ = ["describe", "device_of", "dtype_of"]


def device_of(pipeline: Any) -> str:
    """The device that its denoiser computes on; under accelerate's offloading not where its weights lie."""
    denoiser = denoisers_of(pipeline)[0]
    hooked = getattr(getattr(denoiser, "_hf_hook", None), "execution_device", None)
    return str(hooked or next((each.device for each in denoiser.parameters()), "cpu"))


def dtype_of(pipeline: Any) -> str:
    """The dtype that its denoiser computes in, as "bfloat16"."""
    denoiser = denoisers_of(pipeline)[0]
    dtype: Any = getattr(denoiser, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        dtype = next((each.dtype for each in denoiser.parameters() if each.is_floating_point()), torch.float32)
    return str(dtype).removeprefix("torch.")


def describe(pipeline: Any) -> str:
    """What computes, where and in which precision, in a few words."""
    return f"{type(pipeline).__name__} on {device_of(pipeline)} in {dtype_of(pipeline)}"
