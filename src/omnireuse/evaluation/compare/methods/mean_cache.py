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
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

import omnireuse
from omnireuse.evaluation.compare.methods.base import Method, Setting
from omnireuse.evaluation.compare.methods.calibrating import calibrated, full_runs
from omnireuse.evaluation.compare.methods.strategy import budgets, strategy_setting

if TYPE_CHECKING:
    from omnireuse.evaluation.compare.harness import Harness

__all__ = ["MEAN_CACHE", "MeanVelocity", "cheapest_path", "estimate", "interval_costs"]

PROMPTS = 8
SPANS = (1, 2, 3, 4, 5, 6)
"""Steps that J is taken over; 1 gives J = 0, which holds the last velocity."""
WIDEST = 8
EXPONENT = 2.0


def estimate(velocities: Sequence[torch.Tensor], sigmas: Sequence[float], span: int) -> torch.Tensor:
    """The average velocity of the step behind the last known one.

    Args:
        velocities: of all steps before it that are known, computed or estimated, oldest first.
        sigmas: noise levels from the first of them to the end of the step to come: two more than velocities.
        span: how many of them J is taken over, fewer where fewer are known.
    """
    span = min(span, len(velocities))
    widths = [sigmas[i + 1] - sigmas[i] for i in range(len(sigmas) - 1)]
    last, recent = velocities[-span:], widths[-1 - span : -1]
    whole = sum(recent)
    mean = sum((v * w for v, w in zip(last, recent, strict=True)), torch.zeros_like(last[0])) / whole
    return velocities[-1] - (last[0] - mean) / whole * widths[-1]


class _Velocities(omnireuse.Memory):
    """Velocities of the last steps, computed or estimated; coordinates are step numbers."""

    def __init__(self, sigmas: Sequence[float], spans: Sequence[int]) -> None:
        self._sigmas, self._spans = tuple(sigmas), tuple(spans)
        self._values: list[torch.Tensor] = []
        self._first = 0
        """Step of the first value."""

    @property
    def primed(self) -> bool:
        return bool(self._values)

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        self._reach(round(coordinate))
        self._values.append(value)
        over = max(len(self._values) - max(SPANS), 0)
        self._values, self._first = self._values[over:], self._first + over

    def predict(self, coordinate: float) -> torch.Tensor:
        step = round(coordinate)
        self._reach(step)
        return self._next(step)

    def _reach(self, step: int) -> None:
        """Know every step before this one: forget what comes later, and estimate what was not computed."""
        if not self._values:
            self._first = step
        del self._values[max(step - self._first, 0) :]
        while self._values and self._first + len(self._values) < step:
            self._values.append(self._next(self._first + len(self._values)))

    def _next(self, step: int) -> torch.Tensor:
        return estimate(self._values, self._sigmas[self._first : step + 2], self._spans[step])


@dataclass(frozen=True, kw_only=True)
class MeanVelocity(omnireuse.Forecaster):
    """The forecast of MeanCache.

    Args:
        sigmas: noise levels of the run, one more than steps.
        spans: for each step, how many steps before it J is taken over.
    """

    sigmas: tuple[float, ...]
    spans: tuple[int, ...]

    def start(self, branch: int = 0) -> _Velocities:
        """An empty memory."""
        return _Velocities(self.sigmas, self.spans)


def interval_costs(velocities: torch.Tensor, sigmas: Sequence[float]) -> dict[tuple[int, int], tuple[float, int]]:
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


def cheapest_path(costs: dict[tuple[int, int], float], steps: int, count: int) -> tuple[int, ...]:
    """The `count` steps from the first to the last whose intervals have the least sum of costs."""
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(0, 1): (0.0, (0,))}
    for end in range(1, steps):
        for number in range(2, count + 1):
            found = [
                (best[start, number - 1][0] + costs[start, end], (*best[start, number - 1][1], end))
                for start in range(end)
                if (start, end) in costs and (start, number - 1) in best
            ]
            if found:
                best[end, number] = min(found)
    return best[steps - 1, count][1]


def _options(plan: Any, count: int) -> dict[str, Any]:
    costs, sigmas = plan()
    steps = len(sigmas) - 1
    computed = cheapest_path({edge: cost**EXPONENT for edge, (cost, _) in costs.items()}, steps, count)
    spans = [1] * steps
    for start, end in pairwise(computed):
        spans[start + 1 : end] = [costs[start, end][1]] * (end - start - 1)
    return {
        "policy": omnireuse.FixedSchedule(steps=computed),
        "forecaster": MeanVelocity(sigmas=sigmas, spans=tuple(spans)),
        "region": "step",
        "quantity": "output",
        "axis": "steps",
    }


def _grid(harness: Harness) -> Iterator[Setting]:
    workload = calibrated(harness.workload)

    @cache
    def plan() -> tuple[dict[tuple[int, int], tuple[float, int]], tuple[float, ...]]:
        runs = full_runs(workload, PROMPTS, "step")
        return interval_costs(runs.values[0], runs.sigmas), runs.sigmas

    for count in budgets(harness):
        yield strategy_setting("MeanCache", partial(_options, plan, count), computed=count, prompts=PROMPTS)


MEAN_CACHE = Method(key="mean-cache", name="MeanCache, calibrated", family="peer", grid=_grid)
