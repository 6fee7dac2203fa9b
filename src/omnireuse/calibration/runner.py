"""The runs of a search on a pipeline."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omnireuse.calibration.observer import NotFiniteError, Observer, Seen
from omnireuse.errors import StateError, UnsupportedModelError
from omnireuse.forecasters import Fitted, forecaster_named
from omnireuse.handle import Handle
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.bars import without_bar
from omnireuse.pipelines.call import Caller
from omnireuse.pipelines.closeness import capped_psnr
from omnireuse.pipelines.pictures import Picture
from omnireuse.planning.candidate import Candidate
from omnireuse.planning.fit import WeightFit
from omnireuse.policies import Steps
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.shadows import Leading, leading
from omnireuse.tuning.trials import MeasuredCall, Shadow

__all__ = ["Pictures", "PipelineRunner", "RunInFull"]

logger = logging.getLogger("omnireuse")

Pictures = list[Picture]


@dataclass(frozen=True, kw_only=True)
class RunInFull:
    """What the pipeline makes of some prompts when it computes every step.

    Attributes:
        pictures: one for each prompt, an image or a clip, in 0…1.
        full: the run as fits and plans need it; None unless recorded, and where no weights can be fitted.
        seen: what else the run showed.
    """

    pictures: Pictures
    full: FullRun | None
    seen: Seen


class PipelineRunner:
    """A pipeline and prompts, each with a noise of its own. It keeps nothing between two runs. The `replay` of a
    measured call has the places of its prompts.

    Args:
        pipeline: makes images or clips from prompts.
        prompts: all prompts; runs name them by their places.
        call: arguments of every call beside prompt and generator, `num_inference_steps` among them.
        options: of the `Caller`: `seed`, `batch_size`, `pictures`, `known`.

    Raises:
        ConfigError: as `Caller`.
    """

    def __init__(self, pipeline: Any, prompts: Sequence[str], *, call: Mapping[str, Any], **options: Any) -> None:
        self.pipeline = pipeline
        self.prompts: Sequence[str] = list(prompts)
        self.steps: int = call["num_inference_steps"]
        self._caller = Caller(pipeline, self.prompts, call=call, **options)

    def pictures(self, places: range, *, strict: bool = False) -> Pictures:
        """One picture in 0…1 for each of these prompts, made in one call; `strict` as in `Caller.pictures`."""
        with without_bar(self.pipeline):
            return self._caller.pictures(places, strict=strict)

    def full_run(self, places: range, *, record: bool = False) -> RunInFull:
        """Compute every step for the prompts of these places, in one call.

        Args:
            record: whether to record what plans and fits need.

        Raises:
            StateError: a step's output, or a picture, is not finite, or the run cannot be recorded.
        """
        observers: list[Observer] = []

        def observe(_: Strategy, denoisers: Sequence[torch.nn.Module], owner: object) -> Observer:
            observers.append(Observer(denoisers, owner, self.pipeline.scheduler, self.steps, keeps=record))
            return observers[-1]

        try:
            with Handle(self.pipeline, FULL, name="full run", region=observe):
                pictures = self.pictures(places, strict=True)
        except NotFiniteError as error:
            prompt = self.prompts[places[error.row * len(places) // error.rows]]
            raise StateError(
                f"the full run of {prompt!r} is not finite from step {error.step} on; nothing can be calibrated on "
                "it: try another dtype, or leave the prompt out"
            ) from error
        for place, picture in zip(places, pictures, strict=True):
            if not np.isfinite(picture).all():
                raise StateError(
                    f"the full run of {self.prompts[place]!r} is not finite; nothing can be calibrated on it"
                )
        observer = observers.pop()
        seen = observer.seen()
        if record and not observer.is_whole:
            raise StateError(f"nothing can be calibrated: {observer.failure or 'a run ended before its last step'}")
        full = None
        if record:
            try:
                full = FullRun.of(observer)
            except UnsupportedModelError as error:
                logger.warning("%s", error)
        return RunInFull(pictures=pictures, full=full, seen=seen)

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Shadow:
        """As `Leader.lead`."""
        region = Leading(fit, call.full, self.pipeline.scheduler)
        with Handle(self.pipeline, leading(policy), name="fit", region=lambda *_: region):
            pictures = self.pictures(call.replay)
        if region.latents is None:
            raise StateError("a run of a fit ended before its last step")
        return Shadow(region.computed, region.latents, pictures)

    def score(self, candidate: Candidate, places: range, forecaster: Fitted | str, full: Pictures) -> list[float]:
        """Score a candidate on the prompts of these places, in one call.

        Args:
            forecaster: the candidate's weights, or the name of its forecaster.
            full: pictures of the full run.

        Returns:
            PSNR in dB of each prompt to its full run, as `capped_psnr`.
        """
        made = forecaster_named(forecaster) if isinstance(forecaster, str) else forecaster
        strategy = Strategy.where_it_fits(candidate.policy(self.steps), made)
        with Handle(self.pipeline, strategy, name="candidate"):
            pictures = self.pictures(places)
        return [capped_psnr(*pair) for pair in zip(pictures, full, strict=True)]
