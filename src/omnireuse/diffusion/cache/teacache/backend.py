"""The cache backend "tea_cache"."""

from __future__ import annotations

from typing import Any

from omnireuse.diffusion.cache.base import StrategyBackend
from omnireuse.diffusion.cache.blocks import open_blocks
from omnireuse.diffusion.cache.published import checkpoint_of
from omnireuse.diffusion.cache.teacache.config import TeaCacheConfig, published_coefficients
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped

__all__ = ["TeaCacheBackend"]


class TeaCacheBackend(StrategyBackend):
    """Reads `rel_l1_thresh` and `coefficients` of its config."""

    options = ("coefficients", "rel_l1_thresh")

    def open(self, pipeline: Any, agreement: Agreement) -> Handle:
        """Enable TeaCache on the pipeline's denoisers, with the published coefficients where none were given."""
        denoisers = denoisers_of(pipeline)
        model = type(unwrapped(denoisers[0])).__name__
        config = TeaCacheConfig(
            rel_l1_thresh=self.config.rel_l1_thresh,
            coefficients=self.config.coefficients or published_coefficients(model, checkpoint_of(pipeline)),
            transformer_type=model,
        )
        return open_blocks(pipeline, config.strategy, name="tea_cache", agreement=agreement)
