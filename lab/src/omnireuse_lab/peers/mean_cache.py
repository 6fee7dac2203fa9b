"""MeanCache: a reused step takes the average velocity of its interval, estimated from the last ones.

Source: "From Instantaneous to Average Velocity", arXiv 2601.19961, and its public code
(https://github.com/UnicomAI/MeanCache): the estimate û = v − J · Δσ with J = (vₛ − ū) / Δσₛ over the last K steps, and
schedules as tables. The search that made the tables is not public. Ours: its cost of an interval is what the estimate
misses of the interval's true average velocity (mean absolute value) on calibration prompts, its exponent γ is 2, and
the path with the least sum of cost^γ is found by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

import omnireuse
from omnireuse.errors import UnsupportedModelError
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, lazily, reuse
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.peers.calibrating import best_path, budgets, full_runs
from omnireuse_lab.peers.step_memory import StepMemory

__all__ = ["MEAN_CACHE", "MeanVelocity", "estimate", "interval_costs"]

PROMPTS = 8
SPANS = (1, 2, 3, 4, 5, 6)
"""Steps that J is taken over; 1 gives J = 0, which holds the last velocity."""
WIDEST = 8
EXPONENT = 2.0

Costs = dict[tuple[int, int], tuple[float, int]]


def estimate(velocities: Sequence[torch.Tensor], sigmas: Sequence[float], span: int) -> torch.Tensor:
    """The average velocity of the step behind the last known one.

    Args:
        velocities: of all steps before it that are known, computed or estimated, oldest first.
        sigmas: noise levels from the first of them to the end of the step to come: two more than velocities.
        span: how many of them J is taken over, fewer if fewer are known.
    """
    span = min(span, len(velocities))
    widths = [sigmas[i + 1] - sigmas[i] for i in range(len(sigmas) - 1)]
    last, recent = velocities[-span:], widths[-1 - span : -1]
    whole = sum(recent)
    mean = sum((v * w for v, w in zip(last, recent, strict=True)), torch.zeros_like(last[0])) / whole
    return velocities[-1] - (last[0] - mean) / whole * widths[-1]


@dataclass(frozen=True, kw_only=True)
class MeanVelocity(omnireuse.Forecaster):
    """The forecast of MeanCache.

    Args:
        sigmas: noise levels of the run, one more than steps.
        spans: for each step, how many steps before it J is taken over.
    """

    sigmas: tuple[float, ...]
    spans: tuple[int, ...]

    def start(self, branch: int = 0) -> StepMemory:
        def forecast(values: Sequence[torch.Tensor], step: int) -> torch.Tensor:
            return estimate(values, self.sigmas[step - len(values) : step + 2], self.spans[step])

        return StepMemory(forecast, max(SPANS))


def interval_costs(velocities: torch.Tensor, sigmas: Sequence[float]) -> Costs:
    """For each interval between two computed steps, what its best span misses of the average velocity, and that span.

    Args:
        velocities: of full runs, shape (steps, prompts, …).
        sigmas: noise levels, one more than steps.
    """
    costs = {}
    for start in range(len(velocities) - 1):
        costs[start, start + 1] = (0.0, 1)
        for span in SPANS:
            known = list(velocities[: start + 1])
            missed = torch.zeros_like(known[0])
            for step in range(start + 1, min(start + WIDEST, len(velocities) - 1)):
                known.append(estimate(known, sigmas[: step + 2], span))
                missed = missed + (known[-1] - velocities[step]) * (sigmas[step + 1] - sigmas[step])
                cost = float(missed.abs().mean()) / abs(sigmas[step + 1] - sigmas[start])
                edge = start, step + 1
                costs[edge] = min(costs.get(edge, (cost, span)), (cost, span))
    return costs


def _calibrate(work: Workload) -> tuple[Costs, tuple[float, ...]]:
    values, sigmas = full_runs(work, "step")
    if not sigmas:
        name = type(work.pipeline.scheduler).__name__
        raise UnsupportedModelError(
            f"MeanCache averages velocities over the noise levels of a run, and {name} lists none"
        )
    return interval_costs(values[0], sigmas), sigmas


def _options(found: tuple[Costs, tuple[float, ...]], count: int) -> dict[str, Any]:
    costs, sigmas = found
    steps = len(sigmas) - 1
    computed = best_path({edge: cost**EXPONENT for edge, (cost, _) in costs.items()}, steps, count, sum)
    spans = [1] * steps
    for start, end in pairwise(computed):
        spans[start + 1 : end] = [costs[start, end][1]] * (end - start - 1)
    return {
        "policy": omnireuse.Steps(steps=computed),
        "forecaster": MeanVelocity(sigmas=sigmas, spans=tuple(spans)),
        "region": "step",
        "prediction_target": "output",
        "axis": "steps",
    }


def _grid(subject: Subject) -> Iterator[Setting]:
    make = lazily(subject, PROMPTS, _calibrate, _options)
    for count in budgets(subject.workload.steps):
        yield reuse("MeanCache", make(count), computed=count, prompts=PROMPTS)


MEAN_CACHE = Method(key="mean-cache", name="MeanCache, calibrated", family="peer", grid=_grid)
