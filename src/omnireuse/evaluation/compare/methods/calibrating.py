"""What published methods calibrate themselves on: prompts of their own, full runs of them, and trials of schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

import omnireuse
from omnireuse.errors import UnsupportedModelError
from omnireuse.evaluation.compare.restore import restored
from omnireuse.evaluation.compare.workload import Workload

__all__ = ["FullRuns", "Trials", "calibrated", "calibration_workload", "full_runs"]


def calibrated(workload: Workload) -> Workload:
    """The workload, which has prompts to calibrate on.

    Raises:
        UnsupportedModelError: it has none.
    """
    if not workload.calibration:
        raise UnsupportedModelError(
            f"{workload.name}: a method that calibrates itself needs prompts that are not compared; give "
            "calibration_prompts"
        )
    return workload


def calibration_workload(workload: Workload, count: int) -> Workload:
    """The same case with `count` of its prompts to calibrate on, or all of them, in one batch."""
    prompts = workload.calibration[:count]
    return replace(
        workload, prompts=prompts, checks=(), calibration=(), seed=workload.calibration_seed, batch_size=len(prompts)
    )


class _Tape(omnireuse.Memory):
    """Keeps every value; nothing is forecast from it."""

    primed = False

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        self.values.append(value)

    def predict(self, coordinate: float) -> torch.Tensor:
        raise AssertionError("every step is computed")


@dataclass(frozen=True, kw_only=True)
class _Recorder(omnireuse.Forecaster):
    tapes: list[_Tape] = field(default_factory=list, compare=False)

    def start(self, branch: int = 0) -> _Tape:
        self.tapes.append(_Tape())
        return self.tapes[-1]


@dataclass(frozen=True, kw_only=True)
class FullRuns:
    """What full runs computed.

    Attributes:
        values: one tensor for each branch, shape (steps, prompts, …).
        sigmas: noise levels of the scheduler, steps + 1 of them.
    """

    values: tuple[torch.Tensor, ...]
    sigmas: tuple[float, ...]


def full_runs(workload: Workload, count: int, region: Literal["call", "step"]) -> FullRuns:
    """Run `count` calibration prompts in full, and record the denoiser's outputs.

    Args:
        region: "call" for the outputs of each branch, "step" for what the scheduler is handed.
    """
    work, recorder = calibration_workload(workload, count), _Recorder()
    policy = omnireuse.FixedSchedule(every=1)
    with (
        restored(work.pipeline),
        omnireuse.enable(work.pipeline, policy=policy, forecaster=recorder, region=region, quantity="output"),
    ):
        work.pictures(range(len(work.prompts)), work.steps)
        sigmas = tuple(float(sigma) for sigma in work.pipeline.scheduler.sigmas)
    found = [torch.stack(tape.values).float() for tape in recorder.tapes if tape.values]
    return FullRuns(values=tuple(found), sigmas=sigmas)


class Trials:
    """True runs of calibration prompts by chosen schedules, held against their full runs.

    Args:
        workload: the case.
        count: prompts of each trial.
        options: of `omnireuse.enable`, beside the policy.
        power: of the absolute differences whose mean is the error.

    Attributes:
        spent: work so far, as full runs of one prompt.
    """

    def __init__(self, workload: Workload, count: int, options: Mapping[str, Any], *, power: int = 2) -> None:
        self._workload, self._count, self._power, self._options = workload, count, power, options
        self._known: dict[tuple[int, ...], float] = {}
        self.spent = 0.0

    def error(self, computed: Iterable[int]) -> float:
        """Mean of |difference|^power between the pictures of a schedule and those of the full runs.

        Args:
            computed: the steps that compute; the first and the last compute in any case.
        """
        steps = self._workload.steps
        key = tuple(sorted({0, steps - 1, *computed}))
        if key not in self._known:
            work, full = self._full
            policy = omnireuse.FixedSchedule(steps=key)
            with restored(work.pipeline), omnireuse.enable(work.pipeline, policy=policy, **self._options):
                made = work.pictures(range(len(work.prompts)), steps)
            self.spent += len(key) / steps * len(work.prompts)
            errors = [np.mean(np.abs(a - b) ** self._power) for a, b in zip(made, full, strict=True)]
            self._known[key] = float(np.mean(errors))
        return self._known[key]

    @cached_property
    def _full(self) -> tuple[Workload, Sequence[Any]]:
        work = calibration_workload(self._workload, self._count)
        self.spent += len(work.prompts)
        with restored(work.pipeline):
            return work, work.pictures(range(len(work.prompts)), work.steps)
