"""TeaCache as engines know it, under every module path of the specified interface.

Source: "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model", arXiv 2411.19108.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import torch.distributed as dist

from omnireuse.base.validation import Positive, check_fields
from omnireuse.diffusion.cache.base import StepCacheBackend
from omnireuse.handle import Handle
from omnireuse.loop.agreement import Agreement
from omnireuse.models.extractors import CacheContext, Extractor, get_extractor, register_extractor
from omnireuse.named.options import Coefficients, DiffusionCacheConfig
from omnireuse.named.published import published_coefficients
from omnireuse.named.step_caches import open_step_cache
from omnireuse.policies.tea_cache import TeaCacheState

__all__ = [
    "CacheContext",
    "Extractor",
    "TeaCacheBackend",
    "TeaCacheConfig",
    "TeaCacheState",
    "apply_teacache_hook",
    "get_extractor",
    "published_coefficients",
    "register_extractor",
]

_this = sys.modules[__name__]
for _path in ("backend", "config", "extractors", "hook", "state"):  # the modules that the interface specifies
    sys.modules[f"{__name__}.{_path}"] = _this
    setattr(_this, _path, _this)


@dataclass(frozen=True)
class TeaCacheConfig:
    """TeaCache on one model.

    Args:
        rel_l1_thresh: accumulated relative L1 change at which a step computes, finite and > 0. Raising it reuses
            more; the paper's models gave about 1.5x at 0.2 with minimal loss, 1.8x at 0.4, 2.0x at 0.6 with a
            visible loss.
        coefficients: exactly five finite numbers, highest power first; None takes the published ones for
            `transformer_type`.
        transformer_type: class name of the denoiser.

    Raises:
        ConfigError: the threshold or the coefficients are out of range.
        UnknownNameError: no coefficients are given, and none are published for this type.
    """

    rel_l1_thresh: Positive = 0.2
    # A list is read back as a list, and has no hash.
    coefficients: Coefficients | None = field(default=None, hash=False)
    transformer_type: str = "QwenImageTransformer2DModel"

    def __post_init__(self) -> None:
        if self.coefficients is None:
            object.__setattr__(self, "coefficients", published_coefficients(self.transformer_type))
        check_fields(self)


class TeaCacheBackend(StepCacheBackend):
    """TeaCache on a pipeline. It reads `rel_l1_thresh` and `coefficients` of its config."""

    name = "tea_cache"


def apply_teacache_hook(
    module: torch.nn.Module, config: TeaCacheConfig, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """TeaCache on a denoiser without a pipeline. The timestep of a call tells the steps apart.

    `handle.expect(num_inference_steps)` before a generation lets the last step be known and computed.

    Args:
        group: the ranks that share the forward's collectives; None where each rank runs its own model.
    """
    options = DiffusionCacheConfig(rel_l1_thresh=config.rel_l1_thresh, coefficients=config.coefficients)
    return open_step_cache("tea_cache", options, SimpleNamespace(transformer=module), Agreement(group))
