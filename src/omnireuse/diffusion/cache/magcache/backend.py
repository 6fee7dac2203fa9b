"""MagCache on a pipeline."""

from __future__ import annotations

import json
from pathlib import Path

from omnireuse.base.records import write_text
from omnireuse.diffusion.cache.base import StepCacheBackend
from omnireuse.errors import StateError
from omnireuse.hooks.denoisers import denoisers_of, model_name
from omnireuse.named.measuring import MagnitudeRecorder

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
        """Write the measured ratios, "ratios", as JSON, with the class of the denoiser, "transformer_class"."""
        model = model_name(denoisers_of(self._pipeline)[0])
        write_text(path, json.dumps({"transformer_class": model, "ratios": self.calibrated_ratios()}) + "\n")
