"""Runs of a pipeline with prompts: full ones, trial runs, and those that follow a plan."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from omnireuse import messages
from omnireuse.errors import StateError, UnknownNameError, UnsupportedModelError
from omnireuse.handle import Handle
from omnireuse.hooks.denoisers import denoisers_of, is_compiled_whole
from omnireuse.hooks.extension import Extension, InRegion
from omnireuse.hooks.live import StepRegion
from omnireuse.hooks.run import Chooser, Chosen, Region, RunStart
from omnireuse.loop.strategy import Strategy
from omnireuse.models.regions import make_region
from omnireuse.named.measuring import WatchedRun
from omnireuse.named.options import DiffusionCacheConfig
from omnireuse.named.step_caches import mag_cache
from omnireuse.noise.schedulers import noise_levels
from omnireuse.pipelines.bars import without_bar
from omnireuse.pipelines.call import Caller
from omnireuse.pipelines.pictures import Picture, capped_psnr
from omnireuse.tuning.recording import FULL, FullRun, Recording
from omnireuse.tuning.trials import MeasuredCall, PipelineTrials

__all__ = ["PromptRuns"]

logger = logging.getLogger("omnireuse")


class _Choosing(Extension):
    """Chooses what the run of one call follows."""

    def __init__(self, choose: Chooser) -> None:
        self._choose = choose

    def choose(self, start: RunStart) -> Chosen:
        return self._choose(start)


class PromptRuns(PipelineTrials):
    """A pipeline and prompts, each with a noise of its own. The `replay` of a measured call has the places of its
    prompts.

    Args:
        pipeline: makes images or clips from prompts.
        prompts: all prompts; runs name them by their places.
        call: arguments of every call beside prompt and generator, `num_inference_steps` among them.
        options: of the `Caller`: `seed`, `batch_size`, `pictures`, `known`.

    Attributes:
        made: the pictures of each full run, in 0…1.
        seen: what the blocks have shown in each full run.
        blocks_unseen: why the blocks are not watched in full runs, in words; empty if they are.

    Raises:
        ConfigError: as `Caller`.
    """

    def __init__(self, pipeline: Any, prompts: Sequence[str], *, call: Mapping[str, Any], **options: Any) -> None:
        self.pipeline, self.prompts, self.steps = pipeline, list(prompts), int(call["num_inference_steps"])
        self.made, self.seen = dict[range, list[Picture]](), dict[range, WatchedRun]()
        self.blocks_unseen = ""
        self._caller = Caller(pipeline, self.prompts, call=call, **options)

    @property
    def coordinates(self) -> tuple[float, ...]:
        """Noise fraction at each step of a run that was made, or its number if the scheduler's noise is not known."""
        levels = noise_levels(self.pipeline.scheduler)
        return tuple(levels[step].coordinate if step < len(levels) else float(step) for step in range(self.steps))

    def full_run(self, places: range, *, record: bool = False) -> FullRun | None:
        """Compute every step for the prompts of these places, in one call.

        Args:
            record: whether to return the run as plans and fits need it; None if no weights can be fitted.

        Raises:
            StateError: the latents or a picture are not finite, or the run cannot be recorded.
        """
        recording = Recording(
            self.pipeline.scheduler, self.steps, keeps=record, is_bounded=False, calls_may_change=True
        )

        def region(strategy: Strategy, denoisers: Sequence[Any], owner: object) -> Region:
            inner = None if strategy is FULL else make_region(strategy, denoisers, owner)
            return StepRegion(stepper=recording, inner=inner)

        strategy = self._watching()
        pictures, handle = self._made(places, strategy, "full run", InRegion(region), strict=True)
        broken = [place for place, each in zip(places, pictures, strict=True) if not np.isfinite(each).all()]
        if broken or handle.summary().broken:
            prompts = " or ".join(repr(self.prompts[place]) for place in broken or places)
            raise StateError(messages.FULL_RUN_NOT_FINITE, prompts=prompts)
        if recording.made != self.steps or (record and not recording.is_whole):
            why = (record and recording.failure) or "a run ended before its last step"
            raise StateError(f"nothing can be calibrated: {why}")
        self.made[places], self.seen[places] = pictures, WatchedRun.of(strategy.forecaster, handle.events, self.steps)
        full, unfit = None, ""
        if record:
            try:
                full = FullRun.of(recording)
                unfit = full.unfit or ""
            except UnsupportedModelError as error:
                unfit = str(error)
        if unfit:
            logger.warning("%s", unfit)
        return None if unfit else full

    def _watching(self) -> Strategy:
        """Computes every step, and watches the blocks if it can."""
        if not self.blocks_unseen:
            try:
                if any(map(is_compiled_whole, denoisers_of(self.pipeline))):
                    raise UnsupportedModelError("the denoiser is compiled whole; compile its blocks instead")
                seeing = mag_cache(DiffusionCacheConfig(mag_calibrate=True), self.pipeline)
                return dataclasses.replace(seeing, signal="modulated_input", measure_errors=True)
            except (UnknownNameError, UnsupportedModelError) as error:
                logger.info("blocks are not measured: %s", error)
                self.blocks_unseen = str(error)
        return FULL

    def again(self, call: MeasuredCall, choose: Chooser) -> list[Picture]:
        """Make the prompts of a measured call again; return their pictures."""
        return self._made(call.replay, FULL, "trial run", _Choosing(choose))[0]

    def pictures(self, call: MeasuredCall) -> list[Picture]:
        """The pictures of its full run."""
        return self.made[call.replay]

    def score(self, strategy: Strategy, places: range) -> list[float]:
        """PSNR in dB of the prompts of these places to the pictures of their full run, as `capped_psnr`, if one call
        follows a strategy."""
        pictures, _ = self._made(places, strategy, "plan")
        return [capped_psnr(*pair) for pair in zip(pictures, self.made[places], strict=True)]

    def _made(
        self, places: range, strategy: Strategy, name: str, *extensions: Extension, strict: bool = False
    ) -> tuple[list[Picture], Handle]:
        """One picture in 0…1 for each of these prompts, made in one call; and the handle of that call."""
        with Handle(self.pipeline, (strategy, name, extensions)) as handle, without_bar(self.pipeline):
            return self._caller.pictures(places, strict=strict), handle
