"""MagCache on a denoiser."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from omnireuse.diffusion.cache.blocks import Bare, open_blocks
from omnireuse.diffusion.cache.magcache.config import MagCacheConfig
from omnireuse.diffusion.cache.magcache.strategy import recorder_for
from omnireuse.diffusion.calibration.mag_cache import MagnitudeRecorder
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.policies import Never
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["apply_mag_cache_hook", "open_mag_cache"]


def apply_mag_cache_hook(
    module: torch.nn.Module, config: MagCacheConfig, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """MagCache on a denoiser without a pipeline. The call's timestep tells the steps apart.

    The first generation has `config.num_inference_steps`; `handle.expect(n)` announces another count.
    """
    pipeline = Bare(module)
    recorder = recorder_for(pipeline) if config.mag_calibrate else None
    handle = open_mag_cache(pipeline, config, recorder, Agreement(group))
    handle.expect(config.num_inference_steps)
    return handle


def open_mag_cache(
    pipeline: Any, config: MagCacheConfig, recorder: MagnitudeRecorder | None, agreement: Agreement
) -> Handle:
    """Enable MagCache on a pipeline's denoisers; with a recorder, the measurement of its ratios instead."""
    if recorder is not None:
        strategy = Strategy(policy=Never(), forecaster=recorder, region="blocks")
        return open_blocks(pipeline, strategy, name="mag_cache calibration", agreement=agreement)
    return open_blocks(pipeline, Strategy(policy=config.policy, region="blocks"), name="mag_cache", agreement=agreement)
