"""The cheapest path through a schedule for every number of computed steps, by dynamic programming."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_paths"]


def best_paths(costs: NDArray[np.float64], most: int) -> dict[int, tuple[int, ...]]:
    """For each number of computed steps from 2 to `most`, the steps whose gaps cost least together.

    Args:
        costs: (steps, steps, steps, steps): cost of the gap from j to m after computed steps h and i; inf where it
            cannot be. The first two of a path stand in for what came before them.
        most: largest number of computed steps, at most the number of steps.

    Returns:
        Paths from step 0 to the last one. Exact under these costs; ties go to the earlier step.
    """
    total = len(costs)
    # Cheapest way to stand at j after i after h, having computed so many steps.
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
            paths[count] = _back(origins, int(i), int(j), total - 1)
    return paths


def _back(origins: list[NDArray[np.intp]], i: int, j: int, m: int) -> tuple[int, ...]:
    path = [m, j]
    for origin in reversed(origins):
        h = int(origin[i, j, m])
        i, j, m = h, i, j
        path.append(j)
    return tuple(sorted(set(path)))
