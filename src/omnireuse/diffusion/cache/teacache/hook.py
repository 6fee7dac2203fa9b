"""TeaCache on a denoiser without a pipeline."""

from __future__ import annotations

import torch
import torch.distributed as dist

from omnireuse.diffusion.cache.blocks import Bare, open_blocks
from omnireuse.diffusion.cache.teacache.config import TeaCacheConfig
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement

__all__ = ["apply_teacache_hook"]


def apply_teacache_hook(
    module: torch.nn.Module, config: TeaCacheConfig, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """TeaCache on a denoiser without a pipeline. The call's timestep tells the steps apart.

    Returns the handle; `handle.expect(num_inference_steps)` before a generation lets the last step be known and
    computed.
    """
    return open_blocks(Bare(module), config.strategy, name="tea_cache", agreement=Agreement(group))
