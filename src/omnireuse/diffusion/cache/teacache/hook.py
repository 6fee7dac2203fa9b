"""TeaCache on a denoiser without a pipeline."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist

from omnireuse.diffusion.cache.teacache.config import TeaCacheConfig
from omnireuse.handle import Handle
from omnireuse.named.options import DiffusionCacheConfig
from omnireuse.named.step_caches import NamedCache

__all__ = ["apply_teacache_hook"]


def apply_teacache_hook(
    module: torch.nn.Module, config: TeaCacheConfig, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """TeaCache on a denoiser without a pipeline. Calls of a step share a timestep, or `handle.advance` ends the step.

    Call `handle.expect(num_inference_steps)` before each generation; one that is not announced is computed.

    Args:
        group: the ranks that share the forward's collectives; None if each rank runs its own model.
    """
    options = DiffusionCacheConfig(rel_l1_thresh=config.rel_l1_thresh, coefficients=config.coefficients)
    pipeline = SimpleNamespace(transformer=module)
    return Handle(pipeline, NamedCache("tea_cache", options).open(pipeline, group), group)
