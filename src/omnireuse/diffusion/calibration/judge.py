"""How close a pipeline with reuse comes to its own full runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from omnireuse.diffusion.calibration.candidate import Candidate
from omnireuse.diffusion.calibration.fit import Path, WeightFit, recorded_path
from omnireuse.diffusion.calibration.observer import NotFiniteError, Observations
from omnireuse.diffusion.calibration.profile import fingerprint
from omnireuse.diffusion.calibration.record import DistanceRecorder, Distances
from omnireuse.diffusion.fingerprint import fingerprint as content_fingerprint
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.pipelines import enable
from omnireuse.diffusion.reuse.forecasters import Fitted, Hold
from omnireuse.diffusion.reuse.policies import Never
from omnireuse.diffusion.reuse.runtime.placement import describe, dtype_of
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import StateError
from omnireuse.evaluation.metrics import IDENTICAL_DB, psnr
from omnireuse.pipelines.call import Caller, without_bar
from omnireuse.pipelines.pictures import Picture

__all__ = ["FullRun", "Judge"]

Pictures = list[Picture]


@dataclass(frozen=True, kw_only=True)
class FullRun:
    """What the pipeline makes of some prompts when it computes every step.

    Attributes:
        pictures: one a prompt, an image or a clip, in 0…1.
        distances: between the values at all its steps; None where nobody asked.
        path: the latents that it went through; None where nobody asked.
        seen: what else it showed.
    """

    pictures: Pictures
    distances: Distances | None
    path: Path | None
    seen: Observations


class Judge:
    """A pipeline and prompts, each with a noise of its own. It keeps nothing between two calls.

    Args:
        pipeline: a pipeline that makes images or clips from prompts.
        prompts: all that will be asked about.
        first_seed: of the first prompt's noise; the others count on from it.
        call: arguments of every call beside prompt and generator, `num_inference_steps` among them.
        batch_size: the most prompts of a call.
        pictures: as in `Caller`.
        known: as in `Caller`.

    Raises:
        ConfigError: as `Caller`.
    """

    def __init__(
        self,
        pipeline: Any,
        prompts: Sequence[str],
        *,
        first_seed: int,
        call: Mapping[str, Any],
        batch_size: int = 1,
        pictures: Callable[[Any], Any] | None = None,
        known: Sequence[str] = (),
    ) -> None:
        self._pipeline = pipeline
        self._prompts = list(prompts)
        self._call = call
        self._caller = Caller(
            pipeline,
            self._prompts,
            seed=first_seed,
            call=call,
            batch_size=batch_size,
            pictures=pictures,
            known=known,
        )

    def fingerprint(self) -> tuple[str, str, str]:
        """What the pipeline is, as a profile notes it."""
        return fingerprint(self._pipeline)

    def dtype(self) -> str:
        """What the denoiser computes in, as "bfloat16"."""
        return dtype_of(self._pipeline)

    def description(self) -> str:
        """The pipeline in a few words."""
        return describe(self._pipeline)

    def content(self) -> str:
        """Digest of the pipeline with all its weights: equal in every process that has loaded the same."""
        try:
            parts = dict(self._pipeline.components)
        except (AttributeError, ValueError):
            # No pipeline of diffusers, or one whose constructor does not name its parts.
            parts = {name: part for name, part in vars(self._pipeline).items() if not name.startswith("_")}
        return content_fingerprint(parts)

    def full_run(self, batch: range, record: bool, keep_path: bool) -> FullRun:
        """Run the prompts of these places in full, in one call.

        Raises:
            StateError: a step's output, or a picture, that is not finite.
        """
        recorder, seen = DistanceRecorder(), Observations()
        strategy = Strategy(policy=Never(), forecaster=recorder if record else Hold(), region="step")
        with ExitStack() as stack:
            path = stack.enter_context(recorded_path(self._pipeline)) if record else Path()
            stack.enter_context(Handle(self._pipeline, strategy, name="full run", region=seen.region))
            try:
                pictures = self._pictures(batch, strict=True)
            except NotFiniteError as error:
                prompt = self._prompts[batch[error.row * len(batch) // error.rows]]
                raise StateError(
                    f"the full run of {prompt!r} is not finite from step {error.step} on; nothing can be calibrated on "
                    "it: try another dtype, or leave the prompt out"
                ) from error
        for place, picture in zip(batch, pictures, strict=True):
            if not np.isfinite(picture).all():
                raise StateError(
                    f"the full run of {self._prompts[place]!r} is not finite; nothing can be calibrated on it"
                )
        distances = recorder.distances(self._call["num_inference_steps"]) if record else None
        return FullRun(
            pictures=pictures, distances=distances, path=path if keep_path and path.latents else None, seen=seen
        )

    def fit(
        self, batches: Sequence[range], candidate: Candidate, at: Sequence[float], full: Pictures, *paths: Path
    ) -> tuple[Fitted, list[float] | None]:
        """The weights for a candidate's schedule, fitted on the prompts of these batches.

        Args:
            batches: places of the prompts, one call each.
            candidate: whose schedule it is.
            at: coordinate of each step.
            full: pictures of the full run of the last batch.
            paths: of the full run of each batch.

        Returns:
            The weights, and what `psnr` would say of a single batch, which ran with these very weights; None of
            several.
        """
        fit = WeightFit(candidate.steps, len(at))
        apart = len({len(path.shares) for path in paths}) == 1
        for batch, path in zip(batches, paths, strict=True):
            # Branches that one batch could not tell apart are not told apart at all.
            made = self.lead(fit, path if apart else Path(latents=path.latents), batch, candidate)
        fitted = Fitted(coordinates=tuple(at), weights=fit.weights, computed=candidate.steps)
        return fitted, _psnr(made, full) if len(batches) == 1 else None

    def lead(self, fit: WeightFit, path: Path, batch: range, candidate: Candidate) -> Pictures:
        """Add the prompts of these places to a fit of the candidate's schedule; what they come to with its weights."""
        policy = candidate.policy(self._call["num_inference_steps"])
        with fit.led_along(path, self._pipeline), enable(self._pipeline, policy=policy, quantity="output"):
            return self._pictures(batch)

    def psnr(self, batch: range, candidate: Candidate, forecaster: Fitted | str, full: Pictures) -> list[float]:
        """PSNR in dB of each prompt to its full run, at most `IDENTICAL_DB`; 0 where a picture is not finite."""
        strategy = Strategy.where_it_fits(candidate.policy(self._call["num_inference_steps"]), forecaster)
        with Handle(self._pipeline, strategy, name="candidate"):
            made = self._pictures(batch)
        return _psnr(made, full)

    def _pictures(self, batch: range, *, strict: bool = False) -> Pictures:
        with without_bar(self._pipeline):
            return self._caller.pictures(batch, strict=strict)


def _psnr(made: Pictures, full: Pictures) -> list[float]:
    return [
        min(psnr(picture, reference), IDENTICAL_DB) if np.isfinite(picture).all() else 0.0
        for picture, reference in zip(made, full, strict=True)
    ]
