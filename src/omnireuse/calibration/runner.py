"""The runs of a search on a pipeline."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from omnireuse.calibration.observer import Observer
from omnireuse.calibration.runs import Description, Pictures, RunInFull
from omnireuse.errors import StateError, UnsupportedModelError
from omnireuse.handle import Handle
from omnireuse.hooks.denoisers import describe
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.bars import without_bar
from omnireuse.pipelines.call import Caller
from omnireuse.planning.fit import WeightFit
from omnireuse.policies import Steps
from omnireuse.profiles.conditions import watch_of
from omnireuse.profiles.origin import Origin
from omnireuse.prompts.fingerprint import fingerprint as content_fingerprint
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.shadows import Leading, leading
from omnireuse.tuning.trials import MeasuredCall, Shadow

__all__ = ["PipelineRunner"]

logger = logging.getLogger("omnireuse")


class PipelineRunner:
    """A pipeline and prompts, each with a noise of its own. It keeps nothing between two runs.

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

    def describe(self, *, content: bool) -> Description:
        """As `Runner.describe`."""
        pipeline = self.pipeline
        return Description(
            text=describe(pipeline),
            conditions=watch_of(pipeline).now(),
            origin=Origin.of(pipeline),
            content=content_fingerprint(_parts(pipeline)) if content else "",
        )

    def pictures(self, places: range, *, strict: bool = False) -> Pictures:
        """One picture in 0…1 for each of these prompts, made in one call; `strict` as in `Caller.pictures`."""
        with without_bar(self.pipeline):
            return self._caller.pictures(places, strict=strict)

    def run_in_full(self, places: range, *, record: bool) -> RunInFull:
        """As `Runner.run_in_full`.

        Raises:
            NotFiniteError: an output that is not finite.
            StateError: the run cannot be recorded.
        """
        observers: list[Observer] = []

        def observe(_: Strategy, denoisers: Sequence[torch.nn.Module], owner: object) -> Observer:
            observers.append(Observer(denoisers, owner, self.pipeline.scheduler, self.steps, keeps=record))
            return observers[-1]

        with Handle(self.pipeline, FULL, name="full run", region=observe):
            pictures = self.pictures(places, strict=True)
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
        """As `Runner.lead`."""
        region = Leading(fit, call.full, self.pipeline.scheduler)
        with Handle(self.pipeline, leading(policy), name="fit", region=lambda *_: region):
            pictures = self.pictures(call.replay)
        if region.latents is None:
            raise StateError("a run of a fit ended before its last step")
        return Shadow(region.computed, region.latents, pictures)

    def made_with(self, places: range, strategy: Strategy) -> Pictures:
        """As `Runner.made_with`."""
        with Handle(self.pipeline, strategy, name="candidate"):
            return self.pictures(places)


def _parts(pipeline: Any) -> dict[str, Any]:
    try:
        return dict(pipeline.components)
    except (AttributeError, ValueError):
        # No pipeline of diffusers, or one whose constructor does not name its parts.
        return {name: part for name, part in vars(pipeline).items() if not name.startswith("_")}
