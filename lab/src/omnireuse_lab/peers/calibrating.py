"""What published methods calibrate themselves by: full runs of prompts of their own, and trials of schedules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

import omnireuse
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, lazily, reuse
from omnireuse_lab.compare.restore import restored
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.peers.step_memory import StepMemory

__all__ = ["HELD", "ScheduleTrials", "best_path", "budgets", "full_runs", "searched"]

HELD: Mapping[str, Any] = {"forecaster": "hold", "region": "step", "prediction_target": "output"}
"""Options of `enable`: reused steps take the last velocity, which is Euler's method on the computed steps."""
SHARES = (0.72, 0.5, 0.36, 0.25)
"""Of the steps, for methods that take a number of computed steps."""


def budgets(steps: int) -> list[int]:
    """Numbers of computed steps, the largest first: `SHARES` of the steps, at least three."""
    return sorted({max(round(steps * share), 3) for share in SHARES}, reverse=True)


@dataclass(frozen=True, kw_only=True)
class _Recorder(omnireuse.Forecaster):
    tapes: list[StepMemory] = field(default_factory=list, compare=False)

    def start(self, branch: int = 0) -> StepMemory:
        self.tapes.append(StepMemory(lambda values, _: values[-1], sys.maxsize))
        return self.tapes[-1]


def full_runs(
    work: Workload, region: Literal["call", "step"], **extra: Any
) -> tuple[list[torch.Tensor], tuple[float, ...]]:
    """Run a calibration workload in full, and record the denoiser's outputs.

    Args:
        region: "call" for the outputs of each branch, "step" for what the scheduler is handed.
        extra: arguments of the pipeline's call.

    Returns:
        One tensor for each branch, shape (steps, prompts, …); and the scheduler's noise levels, steps + 1 of them,
        or none if it lists none.
    """
    recorder, every = _Recorder(), omnireuse.EveryNth(every=1)
    options: dict[str, Any] = {"region": region, "prediction_target": "output", "axis": "steps"}
    with restored(work.pipeline), omnireuse.enable(work.pipeline, policy=every, forecaster=recorder, **options):
        work.pictures(range(len(work.prompts)), work.steps, **extra)
        sigmas = tuple(float(sigma) for sigma in getattr(work.pipeline.scheduler, "sigmas", ()))
    return [torch.stack(tape.values).float() for tape in recorder.tapes if tape.values], sigmas


class ScheduleTrials:
    """True runs by chosen schedules, held against full runs.

    Args:
        work: a calibration workload.
        options: of `omnireuse.enable`, beside the policy.
        power: of the absolute differences whose mean is the error.
    """

    def __init__(self, work: Workload, options: Mapping[str, Any], *, power: int = 2) -> None:
        self._work, self._power, self._options = work, power, options
        self._known: dict[tuple[int, ...], float] = {}

    def error(self, computed: Iterable[int]) -> float:
        """Mean of |difference|^power between the pictures of a schedule and those of the full runs.

        Args:
            computed: the steps that are computed; the first and the last are computed in any case.
        """
        key = tuple(sorted({0, self._work.steps - 1, *computed}))
        if key not in self._known:
            full, policy = self._full, omnireuse.Steps(steps=key)
            with restored(self._work.pipeline), omnireuse.enable(self._work.pipeline, policy=policy, **self._options):
                made = self._pictures()
            errors = [np.mean(np.abs(a - b) ** self._power) for a, b in zip(made, full, strict=True)]
            self._known[key] = float(np.mean(errors))
        return self._known[key]

    @cached_property
    def _full(self) -> Sequence[Any]:
        with restored(self._work.pipeline):
            return self._pictures()

    def _pictures(self) -> Sequence[Any]:
        return self._work.pictures(range(len(self._work.prompts)), self._work.steps)


def searched(
    key: str,
    name: str,
    search: Callable[[ScheduleTrials, int, Sequence[int]], Mapping[int, Sequence[int]]],
    *,
    prompts: int,
    options: Mapping[str, Any],
    power: int = 2,
    most: int = 4,
    **shown: Any,
) -> Method:
    """A method that searches a schedule for each number of computed steps by true runs.

    Args:
        search: from trials, the steps of a run and numbers of computed steps to a schedule for each of these.
        prompts: in each trial.
        options: of `enable`, beside the policy.
        power: as for `ScheduleTrials`.
        most: how many of `budgets` are searched, the smallest.
        shown: further settings for the record.
    """

    def grid(subject: Subject) -> Iterator[Setting]:
        steps = subject.workload.steps
        counts = budgets(steps)[-most:]
        make = lazily(
            subject,
            prompts,
            lambda work: search(ScheduleTrials(work, options, power=power), steps, counts),
            lambda found, count: {"policy": omnireuse.Steps(steps=tuple(found[count])), **options},
        )
        for count in counts:
            yield reuse(name, make(count), computed=count, prompts=prompts, **shown)

    grid.__module__ = search.__module__  # figures are measured again if that file has changed
    return Method(key=key, name=f"{name}, calibrated", family="peer", grid=grid)


def best_path(
    costs: Mapping[tuple[int, int], float], steps: int, count: int, total: Callable[[Sequence[float]], Any]
) -> tuple[int, ...]:
    """The `count` steps from the first to the last whose intervals cost the least in `total`, by dynamic programming.

    Args:
        costs: of the intervals between two computed steps.
        total: from the costs of a path to what is compared; a path stays better when both go on alike.
    """
    best: dict[tuple[int, int], tuple[Any, tuple[float, ...], tuple[int, ...]]] = {(0, 1): ((), (), (0,))}
    for end in range(1, steps):
        for number in range(2, count + 1):
            before = [(start, best[start, number - 1]) for start in range(end) if (start, number - 1) in best]
            paths = [((*each[1], costs[at, end]), (*each[2], end)) for at, each in before if (at, end) in costs]
            if paths:
                best[end, number] = min((total(spent), spent, path) for spent, path in paths)
    return best[steps - 1, count][2]
