"""Options of MagCache on one model."""

from __future__ import annotations

from dataclasses import dataclass, field

from omnireuse.base.validation import Count, Positive, Share, check_fields
from omnireuse.diffusion.cache.magcache.strategy import published_ratios
from omnireuse.named.options import Ratios

__all__ = ["MagCacheConfig"]


@dataclass(frozen=True)
class MagCacheConfig:
    """MagCache on one model.

    Args:
        threshold, max_skip_steps, retention_ratio: see `omnireuse.MagCache`.
        num_inference_steps: the step count if no scheduler tells it, ≥ 1.
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
