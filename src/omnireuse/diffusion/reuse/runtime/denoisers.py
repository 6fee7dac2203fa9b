"""Where a pipeline holds its denoisers."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.errors import UnsupportedModelError

__all__ = ["DENOISERS", "denoisers_of"]

DENOISERS = ("transformer", "transformer_2", "unconditional_transformer", "unet", "prior", "decoder")
"""Attributes of a pipeline that hold a denoiser."""


def denoisers_of(pipeline: Any) -> list[torch.nn.Module]:
    """The pipeline's denoisers, in the order of `DENOISERS`.

    Raises:
        UnsupportedModelError: a pipeline without any, or the denoiser itself.
    """
    # A model may call a part of its own its decoder; engines' pipelines are modules, too.
    names = DENOISERS[:4] if isinstance(pipeline, torch.nn.Module) else DENOISERS
    found = [getattr(pipeline, name, None) for name in names]
    denoisers = [module for module in found if isinstance(module, torch.nn.Module)]
    if not denoisers:
        if isinstance(pipeline, torch.nn.Module):
            raise UnsupportedModelError(
                f"{type(unwrapped(pipeline)).__name__} is a model, and reuse is enabled on the pipeline that holds it: "
                "pass the pipeline, as in omnireuse.enable(pipe)"
            )
        raise UnsupportedModelError(
            f"{type(pipeline).__name__} has no denoiser: looked for a torch module at {', '.join(DENOISERS)}"
        )
    return denoisers
