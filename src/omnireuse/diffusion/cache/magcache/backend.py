"""The cache backend "mag_cache"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omnireuse.diffusion.cache.base import StrategyBackend
from omnireuse.diffusion.cache.magcache.config import MagCacheConfig
from omnireuse.diffusion.cache.magcache.hook import open_mag_cache
from omnireuse.diffusion.cache.magcache.strategy import published_ratios, recorder_for, save_ratios
from omnireuse.diffusion.cache.published import checkpoint_of
from omnireuse.diffusion.calibration.mag_cache import MagnitudeRecorder
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.errors import StateError

__all__ = ["MagCacheBackend"]


class MagCacheBackend(StrategyBackend):
    """Reads the `mag_…` fields of its config.

    With `mag_calibrate` it never reuses; after a few generations `calibrated_ratios()` gives what was measured and
    `save_ratios(path)` keeps it.
    """

    options = (
        "mag_calibrate",
        "mag_max_skip_steps",
        "mag_ratios",
        "mag_retention_ratio",
        "mag_threshold",
        "num_inference_steps",
    )
    _recorder: MagnitudeRecorder | None = None

    def open(self, pipeline: Any, agreement: Agreement) -> Handle:
        """Enable MagCache, or the measurement of its ratios, on the pipeline's denoisers."""
        config = MagCacheConfig(
            threshold=self.config.mag_threshold,
            max_skip_steps=self.config.mag_max_skip_steps,
            retention_ratio=self.config.mag_retention_ratio,
            num_inference_steps=self.config.num_inference_steps or 28,
            mag_ratios=self._ratios_for(pipeline),
            mag_calibrate=self.config.mag_calibrate,
            transformer_type=type(unwrapped(denoisers_of(pipeline)[0])).__name__,
        )
        self._recorder = recorder_for(pipeline) if config.mag_calibrate else None
        handle = open_mag_cache(pipeline, config, self._recorder, agreement)
        handle.expect(self.config.num_inference_steps)
        return handle

    def _ratios_for(self, pipeline: Any) -> Any:
        if self.config.mag_ratios is not None or self.config.mag_calibrate:
            return self.config.mag_ratios
        return published_ratios(type(unwrapped(denoisers_of(pipeline)[0])).__name__, checkpoint_of(pipeline))

    def calibrated_ratios(self) -> tuple[tuple[float, ...], ...]:
        """The measured ratios of each branch, one for each step, averaged over the generations since `enable`.

        Raises:
            StateError: calibration is off, or nothing was generated yet.
        """
        if self._recorder is None or self.handle is None:
            raise StateError("calibrated_ratios: enable the backend with mag_calibrate=True and generate first")
        branches = {event.branch for event in self.handle.events}
        return self._recorder.ratios(max(len(branches), 1))

    def save_ratios(self, path: Path) -> None:
        """Write the measured ratios as JSON, with the model they belong to; `load_ratios` reads them back."""
        save_ratios(path, self._pipeline, self.calibrated_ratios())
