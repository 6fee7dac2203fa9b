"""TeaCache on a pipeline."""

from __future__ import annotations

from omnireuse.diffusion.cache.base import StepCacheBackend

__all__ = ["TeaCacheBackend"]


class TeaCacheBackend(StepCacheBackend):
    """TeaCache on a pipeline. It reads `rel_l1_thresh` and `coefficients` of its config."""

    name = "tea_cache"
