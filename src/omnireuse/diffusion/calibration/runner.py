"""The runs of a search on a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from omnireuse.diffusion.calibration.conditions import watch_of
from omnireuse.diffusion.calibration.fit import WeightFit
from omnireuse.diffusion.calibration.jobs import Description, Pictures
from omnireuse.diffusion.calibration.observer import Observations
from omnireuse.diffusion.calibration.origin import Origin
from omnireuse.diffusion.calibration.path import Path, recorded_path
from omnireuse.diffusion.fingerprint import fingerprint as content_fingerprint
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.pipelines import enable
from omnireuse.diffusion.reuse.forecasters import Hold
from omnireuse.diffusion.reuse.policies import FixedSchedule, Never
from omnireuse.diffusion.reuse.runtime.denoisers import describe
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.pipelines.call import Caller, without_bar

__all__ = ["PipelineRunner"]


class PipelineRunner:
    """A pipeline and prompts, each with a noise of its own. It keeps nothing between two jobs.

    Args:
        pipeline: makes images or clips from prompts.
        prompts: all prompts; jobs name them by their places.
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

    def generate(self, places: range, *, strict: bool = False) -> Pictures:
        """As `Runner.generate`; `strict` as in `Caller.pictures`."""
        with without_bar(self.pipeline):
            return self._caller.pictures(places, strict=strict)

    @contextmanager
    def recorded(self, seen: Observations, *, calls_of: int) -> Iterator[Path]:
        """As `Runner.recorded`."""
        with ExitStack() as stack:
            path = stack.enter_context(recorded_path(self.pipeline, calls_of=calls_of)) if seen.keeps_values else Path()
            strategy = Strategy(policy=Never(), forecaster=Hold(), region="step")
            stack.enter_context(Handle(self.pipeline, strategy, name="full run", region=seen.region))
            yield path

    @contextmanager
    def led(self, fit: WeightFit, path: Path, policy: FixedSchedule) -> Iterator[None]:
        """As `Runner.led`."""
        with fit.led_along(path, self.pipeline), enable(self.pipeline, policy=policy, quantity="output"):
            yield

    def following(self, strategy: Strategy) -> AbstractContextManager[object]:
        """As `Runner.following`."""
        return Handle(self.pipeline, strategy, name="candidate")


def _parts(pipeline: Any) -> dict[str, Any]:
    try:
        return dict(pipeline.components)
    except (AttributeError, ValueError):
        # No pipeline of diffusers, or one whose constructor does not name its parts.
        return {name: part for name, part in vars(pipeline).items() if not name.startswith("_")}
