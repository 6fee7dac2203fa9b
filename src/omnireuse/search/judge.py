"""How close a pipeline with reuse comes to its own full runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnireuse.diffusion.pipelines import enable
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.errors import StateError
from omnireuse.report.metrics import IDENTICAL_DB, psnr

__all__ = ["Judge"]

Pictures = list[NDArray[Any]]


class Judge:
    """Some prompts, each with a noise of its own, and what the pipeline makes of them in full.

    Args:
        pipeline: a diffusers pipeline that makes images or clips.
        prompts: not empty.
        first_seed: of the first prompt's noise; the others count on from it.
        batch_size: prompts a call.
        call: arguments of every call beside prompt and generator.
        advance: told the number of prompts whenever some were generated.
    """

    def __init__(
        self,
        pipeline: Any,
        prompts: Sequence[str],
        *,
        first_seed: int,
        batch_size: int,
        call: dict[str, Any],
        advance: Callable[[int], None],
    ) -> None:
        self._pipeline = pipeline
        self._prompts = list(prompts)
        self._first_seed = first_seed
        self._batch_size = batch_size
        self._call = call
        self._advance = advance
        self._full: Pictures = []
        self.runs = 0.0
        """Full runs of one prompt that were spent, reused steps not counted."""

    def run_in_full(self) -> None:
        """Make the pictures that others are held against.

        Raises:
            StateError: a picture that is not finite.
        """
        self._full = self._pictures(1.0)
        for prompt, picture in zip(self._prompts, self._full, strict=True):
            if not np.isfinite(picture).all():
                raise StateError(f"the full run of {prompt!r} is not finite; nothing can be calibrated on it")

    def psnr(self, steps: tuple[int, ...], forecaster: Any) -> list[float]:
        """PSNR of each prompt to its full run, at most `IDENTICAL_DB`; 0 where a picture is not finite."""
        share = len(steps) / self._call["num_inference_steps"]
        with enable(self._pipeline, policy=FixedSchedule(steps=steps), forecaster=forecaster):
            made = self._pictures(share)
        return [
            min(psnr(picture, full), IDENTICAL_DB) if np.isfinite(picture).all() else 0.0
            for picture, full in zip(made, self._full, strict=True)
        ]

    def _pictures(self, share: float) -> Pictures:
        made: Pictures = []
        for start in range(0, len(self._prompts), self._batch_size):
            prompts = self._prompts[start : start + self._batch_size]
            seeds = range(self._first_seed + start, self._first_seed + start + len(prompts))
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
            call = self._call
            if len(prompts) > 1:
                # Pipelines want a list beside a list.
                call = {
                    name: [value] * len(prompts)
                    if name.startswith("negative_prompt") and isinstance(value, str)
                    else value
                    for name, value in call.items()
                }
            one = len(prompts) == 1
            result = self._pipeline(
                prompt=prompts[0] if one else prompts,
                generator=generators[0] if one else generators,
                output_type="np",
                **call,
            )
            made.extend(np.asarray(picture) for picture in next(iter(result.values())))
            self.runs += share * len(prompts)
            self._advance(len(prompts))
        return made
