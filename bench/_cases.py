"""The reference pipelines as cases of `bench strategies`: held-out captions, one call for all of them, a checker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import omnireuse
from omnireuse.diffusion.cache.magcache import MagCacheBackend
from omnireuse.diffusion.calibration.tea_cache import fit_tea_cache
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.reference import captions as image_captions
from omnireuse.reference import checker as image_checker
from omnireuse.reference.evaluate import score
from omnireuse.reference.load import SAMPLING, VIDEO_SAMPLING, load_image_pipeline, load_video_pipeline
from omnireuse.reference.video import captions as video_captions
from omnireuse.reference.video import checker as video_checker

CALIBRATION_PROMPTS = 4


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What tells one reference pipeline from another."""

    load: Callable[[Path | None], Any]
    sampling: dict[str, Any]
    guidance: str
    captions: Any
    checker: Any


KINDS = {
    "image": Kind(
        load=load_image_pipeline,
        sampling=SAMPLING,
        guidance="true_cfg_scale",
        captions=image_captions,
        checker=image_checker,
    ),
    "video": Kind(
        load=load_video_pipeline,
        sampling=VIDEO_SAMPLING,
        guidance="guidance_scale",
        captions=video_captions,
        checker=video_checker,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What two policies must know of a model: measured on captions that nothing is judged on."""

    coefficients: tuple[float, ...]
    ratios: tuple[tuple[float, ...], ...]


class Case:
    """One pipeline on `prompts` captions, every one with a seed of its own."""

    def __init__(self, name: str, prompts: int, seed: int, model: Path | None = None) -> None:
        self._kind = KINDS[name]
        self.pipe: Any = self._kind.load(model)
        self.pipe.set_progress_bar_config(disable=True)
        # One permutation of the held-out captions, so that those to calibrate on are others.
        self._scenes = self._kind.captions.held_out_scenes(prompts + CALIBRATION_PROMPTS, seed=seed)
        self._seed = seed
        self.judged, self._unjudged = range(prompts), range(prompts, prompts + CALIBRATION_PROMPTS)

    def run(self, *, steps: int, guided: bool, which: Sequence[int] | None = None) -> np.ndarray:
        """The captions `which`, by default all that are judged, in one batch: (B, …, H, W, 3) in 0..1."""
        which = self.judged if which is None else which
        prompts = [self._kind.captions.caption(self._scenes[i]) for i in which]
        call = self._kind.sampling | {"num_inference_steps": steps, "negative_prompt": [""] * len(prompts)}
        if not guided:
            call |= {"negative_prompt": None, self._kind.guidance: 1.0}
        generators = [torch.Generator().manual_seed(self._seed + i) for i in which]
        made: np.ndarray = self.pipe(prompts, generator=generators, output_type="np", **call)[0]
        return made

    def attributes_right(self, made: np.ndarray) -> float:
        """Share of the attributes in all judged captions that the checker reads back."""
        return score([self._scenes[i] for i in self.judged], made, self._kind.checker.check)[0]

    def tune(self, *, steps: int, guided: bool) -> Tuning:
        """TeaCache's polynomial and MagCache's ratios for runs of this kind."""
        watch: dict[str, Any] = {"policy": "never", "region": "blocks", "signal": "modulated_input"}
        with omnireuse.enable(self.pipe, **watch, measure_errors=True) as handle:
            self.run(steps=steps, guided=guided, which=self._unjudged)
            coefficients = fit_tea_cache(handle.events)
        backend = MagCacheBackend(DiffusionCacheConfig(mag_calibrate=True))
        backend.enable(self.pipe)
        self.run(steps=steps, guided=guided, which=self._unjudged)
        ratios = backend.calibrated_ratios()
        backend.disable(self.pipe)
        return Tuning(coefficients=coefficients, ratios=ratios)
