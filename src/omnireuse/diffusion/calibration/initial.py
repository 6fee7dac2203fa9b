"""Initial schedules of a search: the default, spreads that do well, and the cheapest path by recorded distances.

In `gap_costs`, computed steps h ≤ i ≤ j are the last three before a gap, k is a step in the gap, and m is the computed
step after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate
from omnireuse.diffusion.calibration.distances import Distances
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.targets import POWER

__all__ = ["FORECASTERS", "best_paths", "gap_costs", "initial_schedules", "spread"]

FORECASTERS = ("hold", "blend", "polynomial")
"""Forecasters that are searched where no weights can be fitted."""
POWERS = (1.0, 1.35, 1.7, 2.2)
"""How steps are spread: without guidance nearly evenly, with it closest at the beginning."""
SPARED = (0.0, 0.08)
"""Shares of the run after the last computed step, which fitted weights can do without."""


def initial_schedules(
    distances: Distances, budgets: Sequence[int], total: int, *, can_fit: bool
) -> dict[int, list[Candidate]]:
    """The candidates that the search for each budget begins with, the default first.

    Where weights can be fitted, all but the default have them: no other forecaster came near them on the reference
    images. Elsewhere they are the cheapest path of each forecaster.
    """
    found = {
        budget: [Candidate(steps=spread(budget, POWER, total), forecaster="blend")]
        + [
            Candidate(steps=spread(budget, power, end), forecaster=FITTED)
            for spared in SPARED
            for power in POWERS
            if can_fit and (end := total - round(spared * total)) >= budget
        ]
        for budget in budgets
    }
    for forecaster in ("blend",) if can_fit else FORECASTERS:
        paths = best_paths(gap_costs(distances, forecaster), max(budgets))
        for budget in budgets:
            if budget in paths:
                found[budget].append(Candidate(steps=paths[budget], forecaster=FITTED if can_fit else forecaster))
    return found


def spread(budget: int, power: float, end: int) -> tuple[int, ...]:
    """`budget` steps from 0 to `end` - 1."""
    return tuple(sorted(FixedSchedule(num_computed=budget, power=power).schedule(end)))


def best_paths(costs: NDArray[np.float64], most: int) -> dict[int, tuple[int, ...]]:
    """The path with the least total cost for each number of computed steps from 2 to `most`, by dynamic programming.

    Args:
        costs: (steps, steps, steps, steps) over h, i, j, m, as `gap_costs` returns. The first two of a path stand in
            for what came before them.

    Returns:
        Paths from step 0 to the last one; ties go to the earlier step.
    """
    total = len(costs)
    # Least cost to have j, i, h as the last computed steps, with `count` steps computed.
    cheapest = np.full((total, total, total), np.inf)
    cheapest[0, 0, 0] = 0.0
    origins: list[NDArray[np.intp]] = []
    paths = {}
    for count in range(2, most + 1):
        onward = cheapest[..., None] + costs
        origins.append(onward.argmin(0))
        cheapest = onward.min(0)
        arrived = cheapest[:, :, total - 1]
        if np.isfinite(arrived).any():
            i, j = np.unravel_index(int(arrived.argmin()), arrived.shape)
            paths[count] = _traced_back(origins, int(i), int(j), total - 1)
    return paths


def _traced_back(origins: list[NDArray[np.intp]], i: int, j: int, m: int) -> tuple[int, ...]:
    path = [m, j]
    for origin in reversed(origins):
        i, j, m = int(origin[i, j, m]), i, j
        path.append(j)
    return tuple(sorted(set(path)))


def gap_costs(distances: Distances, forecaster: str) -> NDArray[np.float64]:
    """Expected error of the latents that each gap leaves, (steps, steps, steps, steps) over h, i, j, m; inf where the
    order is not h ≤ i ≤ j < m.

    A step that removes Δs of a noise share s passes Δs / s of an error in x0 on to the latents. All values are those of
    full runs: the effect of earlier gaps on the path is left to the search on true runs.

    Args:
        forecaster: one of `FORECASTERS`. "hold" does not use the slope through i and j, "blend" uses it as far as h, i
            and j support it, and "polynomial" wholly.
    """
    total = len(distances.coordinates)
    share = np.clip(distances.coordinates, 1e-6, None)
    passed_on = np.append(-np.diff(share), 0.0) / share
    # Sample by sample: each takes steps⁴ numbers.
    error = np.zeros((total,) * 4)
    for sample in distances.squared:
        error += np.sqrt(_squared_errors(sample, distances.coordinates, forecaster))
    error *= passed_on / len(distances.squared)
    # The sum over the steps strictly between j and m.
    up_to = np.concatenate([np.zeros((total, total, total, 1)), np.cumsum(error, axis=3)], axis=3)
    steps = np.arange(total)
    first = np.broadcast_to(steps[None, None, :, None] + 1, (total, total, total, 1))
    costs: NDArray[np.float64] = up_to[..., :total] - np.take_along_axis(up_to, first, axis=3)
    h, i, j, m = np.ogrid[:total, :total, :total, :total]
    costs[(h > i) | (i > j) | (j >= m) | ((i == j) & (j > 0)) | ((h == i) & (i > 0))] = np.inf
    return np.maximum(costs, 0.0)


def _squared_errors(squared: NDArray[np.float64], at: NDArray[np.float64], forecaster: str) -> NDArray[np.float64]:
    """‖x_j + w · slope · (t_k − t_j) − x_k‖² of one sample over h, i, j, k, from the squared distances alone."""
    hold = squared[None, None, :, :]
    if forecaster == "hold":
        return np.broadcast_to(hold, (len(at),) * 4)
    way = at[None, :] - at[:, None]
    # Over i, j, k: the way from j to k as a multiple of that from i to j.
    onward = _quotient(way[None, :, :], way[:, :, None])
    # Over i, j, k: ⟨x_j − x_k, x_j − x_i⟩.
    towards = 0.5 * (squared[None, :, :] + squared[:, :, None] - squared[:, None, :])
    weight = np.ones((1, 1, 1, 1))
    if forecaster == "blend":
        # Over h, i, j: by how much the share of the slope through h and i that the value at j supports is below 1.
        along = 0.5 * (squared[:, None, :] - squared[None, :, :] - squared[:, :, None])
        shortfall = np.clip(1 - _quotient(along, onward * squared[:, :, None]), 0.0, None)
        weight = np.clip(1 - shortfall[..., None] * onward[None], 0.0, None)
        first = np.arange(len(at))
        weight[first, first] = 0.0  # nothing supports the first slope yet
    scaled = weight * onward[None]
    error = hold + 2 * scaled * towards[None] + scaled**2 * squared[None, :, :, None]
    return np.clip(error, 0.0, None)


def _quotient(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    """0 where it is not defined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(above / below, nan=0.0, posinf=0.0, neginf=0.0)
