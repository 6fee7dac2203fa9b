"""The reference pipelines as `bench strategies` plays them: held-out captions, each with a seed of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import omnireuse
from omnireuse.arguments.targets import strategy_of
from omnireuse.diffusion.cache.magcache import MagCacheBackend
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.named.measuring import fit_tea_cache
from reference.case import CLIPS, IMAGES
from reference.drawing import Array
from reference.evaluate import score

CASES = {"image": IMAGES, "video": CLIPS}
CALIBRATION_PROMPTS = 4


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What two policies must know of a model: measured on captions that nothing is judged on."""

    coefficients: tuple[float, ...]
    ratios: tuple[tuple[float, ...], ...]


class Player:
    """One pipeline and its captions."""

    def __init__(self, case: str, prompts: int, seed: int) -> None:
        self._case = CASES[case]
        self.pipe: Any = self._case.load()
        self.pipe.set_progress_bar_config(disable=True)
        # One permutation of the held-out captions, so that those to calibrate on are others.
        self._scenes = self._case.held_out(prompts + CALIBRATION_PROMPTS, seed=seed)
        self._seed = seed
        self.judged, self._unjudged = range(prompts), range(prompts, prompts + CALIBRATION_PROMPTS)

    def run(self, *, steps: int, guided: bool, which: Sequence[int] | None = None) -> Array:
        """The captions `which`, by default all that are judged, together: (B, …, H, W, 3) in 0..1."""
        which = self.judged if which is None else which
        prompts, seeds = [self._case.caption(self._scenes[i]) for i in which], [self._seed + i for i in which]
        unguided = {} if guided else {self._case.guidance: 1.0}
        return self._case.generate(self.pipe, prompts, seeds, num_inference_steps=steps, **unguided)

    def attributes_right(self, made: Array) -> float:
        """Share of the attributes in all judged captions that the checker reads back."""
        return score([self._scenes[i] for i in self.judged], made, self._case.check)[0]

    def tune(self, *, steps: int, guided: bool) -> Tuning:
        """TeaCache's polynomial and MagCache's ratios for runs of this kind."""
        watch: dict[str, Any] = {"policy": "never", "region": "blocks", "signal": "modulated_input"}
        with omnireuse.enable(self.pipe, strategy_of(**watch, measure_errors=True)) as handle:
            self.run(steps=steps, guided=guided, which=self._unjudged)
            coefficients = fit_tea_cache(handle.events)
        backend = MagCacheBackend(DiffusionCacheConfig(mag_calibrate=True))
        backend.enable(self.pipe)
        self.run(steps=steps, guided=guided, which=self._unjudged)
        ratios = backend.calibrated_ratios()
        backend.disable(self.pipe)
        return Tuning(coefficients=coefficients, ratios=ratios)
