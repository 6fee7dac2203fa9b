"""Block-level strategies on a model: by its declaration, or through its extractor."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.cache.extracted import ExtractedRegion
from omnireuse.diffusion.cache.teacache.extractors import has_extractor
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["Bare", "is_extracted", "open_blocks"]


class Bare:
    """A pipeline that is nothing but its denoiser."""

    # Nobody else holds it, so it must not be held weakly.
    __slots__ = ("transformer",)

    def __init__(self, transformer: torch.nn.Module) -> None:
        self.transformer = transformer


def is_extracted(pipeline: Any) -> bool:
    """Whether all of the pipeline's denoisers are served by extractors that were registered for them."""
    return all(has_extractor(type(unwrapped(denoiser)).__name__) for denoiser in denoisers_of(pipeline))


def open_blocks(pipeline: Any, strategy: Strategy, *, name: str, agreement: Agreement) -> Handle:
    """Enable a strategy of region `blocks`; an extractor, where one was registered, comes before a declaration."""
    if not is_extracted(pipeline):
        return Handle(pipeline, strategy, name=name, agreement=agreement)
    return Handle(
        pipeline,
        strategy,
        name=name,
        region=lambda chosen, denoisers, _owner: ExtractedRegion(chosen, denoisers),
        agreement=agreement,
    )
