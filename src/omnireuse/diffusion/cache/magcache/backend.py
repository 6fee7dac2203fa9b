"""The cache backend "mag_cache"."""

from __future__ import annotations

from pathlib import Path

from omnireuse.diffusion.cache.base import StepCacheBackend
from omnireuse.diffusion.cache.magcache.strategy import save_ratios
from omnireuse.diffusion.calibration.mag_cache import MagnitudeRecorder
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of, model_name
from omnireuse.errors import StateError

__all__ = ["MagCacheBackend"]


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
        """Write the measured ratios as JSON, with the class of the denoiser; `load_ratios` reads them back."""
        ratios = self.calibrated_ratios()
        save_ratios(path, model_name(denoisers_of(self._pipeline)[0]), ratios)
