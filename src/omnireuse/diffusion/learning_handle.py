"""The handle of reuse that learns: `omnireuse.enable(pipe, learn=True)`."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

from omnireuse.diffusion.calibration.conditions import watch_of
from omnireuse.diffusion.calibration.origin import Origin, versions
from omnireuse.diffusion.calibration.plan import Plan
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.reuse.learning import Learner
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.reuse.summary import Summary
from omnireuse.errors import StateError

__all__ = ["LearningHandle"]


class LearningHandle(Handle):
    """Reuse whose schedules are planned anew from the errors that runs have shown.

    Runs of other noise levels, schedulers or guidance learn by themselves. The same runs in the same order give the
    same pictures. An interrupted run teaches nothing.

    Cost: one host synchronisation a computed step, where the pipeline is on an accelerator.
    """

    def __init__(self, pipeline: Any, strategy: Strategy, *, name: str, adapts: bool) -> None:
        learning = replace(strategy, measure_errors=True)
        super().__init__(pipeline, learning, name=f"{name}, learning", adapts=adapts)
        self._learner = self._session.runs.learner = Learner(self._stats.fell_back)

    def summary(self) -> Summary:
        """As that of `Handle`, with what was learnt."""
        return replace(super().summary(), learned=self._learner.learned())

    def freeze(self) -> Profile:
        """End learning: schedules stay as they are.

        Returns:
            A profile with the schedule that the latest complete run's kind has now. It is saved, shared and enabled
            like those of `omnireuse.calibrate`, but promises nothing, because no full run was made.

        Raises:
            StateError: no complete run has shown anything yet, the pipeline is gone, or it has another scheduler since.
        """
        pipeline = self._session.pipeline
        if pipeline is None:
            raise StateError("freeze: the pipeline is gone")
        now = watch_of(pipeline).now()
        kind = self._learner.freeze(now.scheduler)
        if kind is None:
            raise StateError(f"freeze: no complete run with {now.scheduler} has reused steps last; generate first")
        return Profile(
            model=now.model,
            config_digest=now.config_digest,
            scheduler=now.scheduler,
            num_inference_steps=len(kind.noises),
            coordinates=kind.noises,
            call=dict(kind.guidance),
            prompts_digest="",
            num_prompts=(kind.runs, 0),
            seed=0,
            created=datetime.date.today().isoformat(),
            versions=versions(),
            cost_in_runs=0.0,
            complete=True,
            plans={len(kind.schedule): Plan(steps=kind.schedule, forecaster="blend", psnr=None, held_out=())},
            measured=None,
            dtype=now.dtype,
            origin=Origin.of(pipeline),
            autocast=now.autocast,
            hooks=now.hooks,
            guider=now.guider,
            command="omnireuse.enable(pipe, learn=True).freeze()",
        )
