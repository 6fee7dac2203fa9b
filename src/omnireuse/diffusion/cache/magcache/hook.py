"""MagCache on a denoiser without a pipeline."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist

from omnireuse.diffusion.cache.magcache.config import MagCacheConfig
from omnireuse.handle import Handle
from omnireuse.named.options import DiffusionCacheConfig
from omnireuse.named.step_caches import NamedCache

__all__ = ["apply_mag_cache_hook"]


def apply_mag_cache_hook(
    module: torch.nn.Module, config: MagCacheConfig, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """MagCache on a denoiser without a pipeline. Calls of a step share a timestep, or `handle.advance` ends the step.

    The first generation has `config.num_inference_steps`; call `handle.expect(num_inference_steps)` before each other
    one. One that is not announced is computed.

    Args:
        group: the ranks that share the forward's collectives; None if each rank runs its own model.
    """
    options = DiffusionCacheConfig(
        mag_threshold=config.threshold,
        mag_max_skip_steps=config.max_skip_steps,
        mag_retention_ratio=config.retention_ratio,
        mag_ratios=config.mag_ratios,
        mag_calibrate=config.mag_calibrate,
        num_inference_steps=config.num_inference_steps,
    )
    pipeline = SimpleNamespace(transformer=module)
    return Handle(pipeline, NamedCache("mag_cache", options).open(pipeline, group), group)
