"""The jobs of a search, whatever makes its runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate
from omnireuse.diffusion.calibration.conditions import Conditions
from omnireuse.diffusion.calibration.distances import Distances
from omnireuse.diffusion.calibration.fit import WeightFit
from omnireuse.diffusion.calibration.observer import NotFiniteError, Observations
from omnireuse.diffusion.calibration.origin import Origin
from omnireuse.diffusion.calibration.path import OutputProducts, Path
from omnireuse.diffusion.reuse.forecasters import Fitted
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import StateError
from omnireuse.evaluation.metrics import IDENTICAL_DB, psnr
from omnireuse.pipelines.pictures import Picture

__all__ = [
    "Describe",
    "Description",
    "Job",
    "Local",
    "Pictures",
    "RunInFull",
    "RunInFullResult",
    "Runner",
    "Score",
    "Shared",
    "Trial",
    "lead",
    "replayed_steps",
]

Pictures = list[Picture]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Runner(Protocol):
    """What makes runs: a pipeline, or the sampler of a graph, with its prompts. It keeps nothing between two jobs.

    Attributes:
        steps: of each run.
        prompts: all prompts, for errors; jobs name them by their places.
    """

    steps: int
    prompts: Sequence[str]

    def describe(self, *, content: bool) -> Description:
        """What makes the runs; with a digest of its weights where `content`."""

    def generate(self, places: range, *, strict: bool = False) -> Pictures:
        """One picture in 0…1 for each of these prompts, made in one call.

        Args:
            strict: whether results that may be no pictures are refused.
        """

    def recorded(self, seen: Observations, *, calls_of: int) -> AbstractContextManager[Path]:
        """Compute every step of the one run that is made meanwhile, and observe it.

        Args:
            seen: takes what is observed; the path is recorded where it keeps values.
            calls_of: number of first steps whose calls are kept.

        Raises:
            NotFiniteError: an output that is not finite.
        """

    def led(self, fit: WeightFit, path: Path, policy: FixedSchedule) -> AbstractContextManager[object]:
        """Lead the one run that is made meanwhile along the path of its full run, for a fit of weights."""

    def following(self, strategy: Strategy) -> AbstractContextManager[object]:
        """Runs that are made meanwhile follow the strategy."""


class Job(Protocol[T_co]):
    """Work for a runner. It can be pickled."""

    def run(self, runner: Runner) -> T_co:
        """Do it, and return its result."""


class Shared(Protocol[T_co]):
    """A large value that many jobs use; workers get it once."""

    def get(self) -> T_co:
        """The value."""


@dataclass(frozen=True, kw_only=True)
class Local(Generic[T]):
    """A shared value of this process."""

    value: T

    def get(self) -> T:
        """The value."""
        return self.value


@dataclass(frozen=True, kw_only=True)
class Description:
    """A pipeline.

    Attributes:
        text: the pipeline in a few words.
        conditions: under which it computes.
        origin: where it comes from, and which weights it has.
        content: digest of the pipeline with all its weights, equal in every process that loads the same; "" where it
            was not asked for.
    """

    text: str
    conditions: Conditions
    origin: Origin
    content: str


@dataclass(frozen=True, kw_only=True)
class Describe:
    """Describe what makes the runs, with or without a digest of its weights."""

    content: bool

    def run(self, runner: Runner) -> Description:
        """The description."""
        return runner.describe(content=self.content)


@dataclass(frozen=True, kw_only=True)
class RunInFullResult:
    """What the pipeline makes of some prompts when it computes every step.

    Attributes:
        pictures: one for each prompt, an image or a clip, in 0…1.
        distances: between the values at all its steps; None unless recorded.
        products: of its outputs; None unless recorded, and where no weights can be fitted.
        path: of the run; None unless recorded and kept, and where no weights can be fitted.
        seen: what else the run showed.
    """

    pictures: Pictures
    distances: Distances | None
    products: OutputProducts | None
    path: Path | None
    seen: Observations


def replayed_steps(total: int) -> int:
    """How many first steps of a full run of `total` steps are kept, so that runs of a fit need not compute them."""
    return total // 3


@dataclass(frozen=True, kw_only=True)
class RunInFull:
    """Run the prompts of these places in full, in one call.

    Args:
        record: whether to record what the plan of schedules needs.
        keep_path: whether to return the path too, of a run that is recorded.
    """

    places: range
    record: bool = False
    keep_path: bool = False

    def run(self, runner: Runner) -> RunInFullResult:
        """The result.

        Raises:
            StateError: a step's output, or a picture, is not finite.
        """
        seen = Observations(keeps_values=self.record)
        with runner.recorded(seen, calls_of=replayed_steps(runner.steps) if self.keep_path else 0) as path:
            try:
                pictures = runner.generate(self.places, strict=True)
            except NotFiniteError as error:
                prompt = runner.prompts[self.places[error.row * len(self.places) // error.rows]]
                raise StateError(
                    f"the full run of {prompt!r} is not finite from step {error.step} on; nothing can be calibrated on "
                    "it: try another dtype, or leave the prompt out"
                ) from error
        for place, picture in zip(self.places, pictures, strict=True):
            if not np.isfinite(picture).all():
                raise StateError(
                    f"the full run of {runner.prompts[place]!r} is not finite; nothing can be calibrated on it"
                )
        return RunInFullResult(
            pictures=pictures,
            distances=seen.take_distances(runner.steps) if self.record else None,
            products=path.take_products(),
            path=path if self.keep_path and path.latents else None,
            seen=seen,
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Fit the weights for a candidate's schedule, and score it on the same runs.

    Args:
        batches: places of the prompts, one call each. Each call adds to the fit, and runs with the weights so far.
        full: of each batch, the pictures and the path of its full run.
        coordinates: of each step.
    """

    candidate: Candidate
    batches: Sequence[range]
    full: Sequence[tuple[Shared[Pictures], Shared[Path] | None]]
    coordinates: tuple[float, ...]

    def run(self, runner: Runner) -> tuple[Fitted | None, list[float]]:
        """The weights, None for a candidate that has a forecaster; the PSNR of each prompt."""
        psnr: list[float] = []
        if self.candidate.forecaster != FITTED:
            for batch, (full, _) in zip(self.batches, self.full, strict=True):
                job = Score(candidate=self.candidate, places=batch, forecaster=self.candidate.forecaster, full=full)
                psnr += job.run(runner)
            return None, psnr
        paths = [path.get() for _, path in self.full if path is not None]
        # Branches that one batch could not tell apart are not told apart at all.
        apart = len({len(path.shares) for path in paths}) == 1
        fit = WeightFit(self.candidate.steps, runner.steps)
        for batch, (full, _), path in zip(self.batches, self.full, paths, strict=True):
            path = path if apart else replace(path, shares=(1.0,))
            psnr += _psnr(lead(runner, fit, path, batch, self.candidate), full.get())
        return Fitted(coordinates=self.coordinates, weights=fit.weights, computed=self.candidate.steps), psnr


def lead(runner: Runner, fit: WeightFit, path: Path, places: range, candidate: Candidate) -> Pictures:
    """Add the prompts of these places to a fit of the candidate's schedule, and return their pictures."""
    policy = candidate.policy(runner.steps)
    with runner.led(fit, path, policy):
        return runner.generate(places)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score a candidate on the prompts of these places, in one call.

    Args:
        forecaster: the candidate's weights, or the name of its forecaster.
        full: pictures of the full run.
    """

    candidate: Candidate
    places: range
    forecaster: Fitted | str
    full: Shared[Pictures]

    def run(self, runner: Runner) -> list[float]:
        """PSNR in dB of each prompt to its full run, at most `IDENTICAL_DB`; 0 where a picture is not finite."""
        strategy = Strategy.where_it_fits(self.candidate.policy(runner.steps), self.forecaster)
        with runner.following(strategy):
            return _psnr(runner.generate(self.places), self.full.get())


def _psnr(made: Pictures, full: Pictures) -> list[float]:
    return [
        min(psnr(picture, reference), IDENTICAL_DB) if np.isfinite(picture).all() else 0.0
        for picture, reference in zip(made, full, strict=True)
    ]
