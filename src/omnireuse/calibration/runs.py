"""The runs of a search, whatever makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from omnireuse.calibration.observer import NotFiniteError, Seen
from omnireuse.errors import StateError
from omnireuse.forecasters import Fitted, forecaster_named
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.closeness import capped_psnr
from omnireuse.pipelines.pictures import Picture
from omnireuse.planning.candidate import Candidate
from omnireuse.profiles.conditions import Conditions
from omnireuse.profiles.origin import Origin
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.trials import Leader

__all__ = ["Description", "Pictures", "RunInFull", "Runner", "full_run", "score"]

Pictures = list[Picture]


class Runner(Leader, Protocol):
    """What makes runs: a pipeline, or the sampler of a graph, with its prompts. It keeps nothing between two runs. The
    `replay` of a measured call has the places of its prompts.

    Attributes:
        steps: of each run.
        prompts: all prompts, for errors; runs name them by their places.
    """

    steps: int
    prompts: Sequence[str]

    def describe(self, *, content: bool) -> Description:
        """What makes the runs; with a digest of its weights where `content`."""

    def run_in_full(self, places: range, *, record: bool) -> RunInFull:
        """Compute every step for the prompts of these places, in one call.

        Raises:
            NotFiniteError: an output that is not finite.
        """

    def made_with(self, places: range, strategy: Strategy) -> Pictures:
        """One picture in 0…1 for each of these prompts, made in one call that follows the strategy."""


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


def full_run(runner: Runner, places: range, *, record: bool = False) -> RunInFull:
    """Run the prompts of these places in full, in one call.

    Args:
        record: whether to record what plans and fits need.

    Raises:
        StateError: a step's output, or a picture, is not finite.
    """
    try:
        run = runner.run_in_full(places, record=record)
    except NotFiniteError as error:
        prompt = runner.prompts[places[error.row * len(places) // error.rows]]
        raise StateError(
            f"the full run of {prompt!r} is not finite from step {error.step} on; nothing can be calibrated on "
            "it: try another dtype, or leave the prompt out"
        ) from error
    for place, picture in zip(places, run.pictures, strict=True):
        if not np.isfinite(picture).all():
            raise StateError(
                f"the full run of {runner.prompts[place]!r} is not finite; nothing can be calibrated on it"
            )
    return run


def score(runner: Runner, candidate: Candidate, places: range, forecaster: Fitted | str, full: Pictures) -> list[float]:
    """Score a candidate on the prompts of these places, in one call.

    Args:
        forecaster: the candidate's weights, or the name of its forecaster.
        full: pictures of the full run.

    Returns:
        PSNR in dB of each prompt to its full run, as `capped_psnr`.
    """
    made = forecaster_named(forecaster) if isinstance(forecaster, str) else forecaster
    pictures = runner.made_with(places, Strategy.where_it_fits(candidate.policy(runner.steps), made))
    return [capped_psnr(*pair) for pair in zip(pictures, full, strict=True)]
