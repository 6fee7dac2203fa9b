"""MagCache as engines know it, under every module path of the specified interface.

Source: "MagCache: Fast Video Generation with Magnitude-Aware Cache", arXiv 2506.09045.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from omnireuse.base.records import write_text
from omnireuse.base.validation import Count, Positive, Share, check_fields
from omnireuse.diffusion.cache.base import StepCacheBackend
from omnireuse.errors import StateError
from omnireuse.handle import Handle
from omnireuse.hooks.denoisers import denoisers_of, model_name
from omnireuse.loop.agreement import Agreement
from omnireuse.named.measuring import MagnitudeRecorder
from omnireuse.named.options import DiffusionCacheConfig, Ratios
from omnireuse.named.published import published_ratios
from omnireuse.named.step_caches import open_step_cache
from omnireuse.policies.mag_cache import MagCacheState

__all__ = [
    "MagCacheBackend",
    "MagCacheConfig",
    "MagCacheState",
    "apply_mag_cache_hook",
    "published_ratios",
]

_this = sys.modules[__name__]
for _path in ("backend", "config", "hook", "state", "strategy"):  # the modules that the interface specifies
    sys.modules[f"{__name__}.{_path}"] = _this
    setattr(_this, _path, _this)


@dataclass(frozen=True)
class MagCacheConfig:
    """MagCache on one model.

    Args:
        threshold, max_skip_steps, retention_ratio: see `omnireuse.MagCache`.
        num_inference_steps: the step count where no scheduler tells it, ≥ 1.
        mag_ratios: one ratio for each step, the first 1.0, finite and positive: one list for all branches, or one for
            each; a list, a tuple, an array or a tensor. N ratios for N steps are used as they are; for another step
            count they are resampled. None takes the published ones for `transformer_type`.
        mag_calibrate: never reuse, and measure the ratios instead.
        transformer_type: class name of the denoiser.

    Raises:
        ConfigError: a value is out of range.
        UnknownNameError: no ratios are given, and none are published for this type.
    """

    threshold: Positive = 0.24
    max_skip_steps: Count = 5
    retention_ratio: Share = 0.1
    num_inference_steps: Count = 28
    # A list is read back as a list, and has no hash.
    mag_ratios: Ratios | None = field(default=None, hash=False)
    mag_calibrate: bool = False
    transformer_type: str = "FluxTransformer2DModel"

    def __post_init__(self) -> None:
        if self.mag_ratios is None and not self.mag_calibrate:
            object.__setattr__(self, "mag_ratios", published_ratios(self.transformer_type))
        check_fields(self)


class MagCacheBackend(StepCacheBackend):
    """MagCache on a pipeline. It reads the `mag_…` fields and `num_inference_steps` of its config.

    With `mag_calibrate` it never reuses. After a few generations `calibrated_ratios()` returns the measured ratios and
    `save_ratios(path)` writes them.
    """

    name = "mag_cache"

    def calibrated_ratios(self) -> tuple[tuple[float, ...], ...]:
        """The measured ratios of each branch, one for each step, averaged over the generations since `enable`.

        Raises:
            StateError: calibration is off, or nothing was generated yet.
        """
        recorder = None if self.handle is None else self.handle.strategy.forecaster
        if self.handle is None or not isinstance(recorder, MagnitudeRecorder):
            raise StateError("calibrated_ratios: enable the backend with mag_calibrate=True and generate first")
        branches = {event.branch for event in self.handle.events}
        return recorder.ratios(max(len(branches), 1))

    def save_ratios(self, path: Path) -> None:
        """Write the measured ratios, "ratios", as JSON, with the class of the denoiser, "transformer_class"."""
        model = model_name(denoisers_of(self._pipeline)[0])
        write_text(path, json.dumps({"transformer_class": model, "ratios": self.calibrated_ratios()}) + "\n")


def apply_mag_cache_hook(
    module: torch.nn.Module, config: MagCacheConfig, *, group: dist.ProcessGroup | None = None
) -> Handle:
    """MagCache on a denoiser without a pipeline. The timestep of a call tells the steps apart.

    The first generation has `config.num_inference_steps`; `handle.expect(n)` announces another count.

    Args:
        group: the ranks that share the forward's collectives; None where each rank runs its own model.
    """
    options = DiffusionCacheConfig(
        mag_threshold=config.threshold,
        mag_max_skip_steps=config.max_skip_steps,
        mag_retention_ratio=config.retention_ratio,
        mag_ratios=config.mag_ratios,
        mag_calibrate=config.mag_calibrate,
        num_inference_steps=config.num_inference_steps,
    )
    return open_step_cache("mag_cache", options, SimpleNamespace(transformer=module), Agreement(group))
