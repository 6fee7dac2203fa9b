"""Schedules: steps that are known before the run, with no measurement, and alike on all ranks."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from omnireuse.policies.base import Policy, StepView, known_total

__all__ = ["Schedule", "cheapest_path"]


class Schedule(Policy):
    """Compute at steps chosen beforehand and reuse at all others. Only `schedule` must be written."""

    @abstractmethod
    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        """The steps that are computed in a run of `total` ≥ 1 steps with these noise fractions."""

    def wants_reuse(self, state: None, view: StepView) -> bool:
        return view.index not in self.schedule(known_total(self, view), view.noises)


def cheapest_path(
    origins: NDArray[np.intp],
    targets: NDArray[np.intp],
    costs: NDArray[np.float64],
    ends: NDArray[np.float64],
    length: int,
) -> list[int]:
    """The nodes of the cheapest path from node 0 along `length` edges: the best schedule of so many gaps.

    Ties go to the lower origin.

    Args:
        origins, targets: (edges,) the nodes of each edge, sorted by target, then by origin.
        costs: (edges,) of each edge.
        ends: (nodes,) the cost of ending at each node; ∞ if no path may end.
    """
    firsts = np.flatnonzero(np.diff(targets, prepend=-1))  # the first edge to each target
    reached, counts = targets[firsts], np.diff(firsts, append=len(targets))
    cheapest = np.full(len(ends), np.inf)
    cheapest[0] = 0.0
    before = []
    for _ in range(length):
        totals = cheapest[origins] + costs
        least = np.minimum.reduceat(totals, firsts)
        is_least = np.flatnonzero(totals == np.repeat(least, counts))
        chosen, cheapest = np.zeros(len(ends), dtype=np.intp), np.full(len(ends), np.inf)
        chosen[reached] = origins[is_least[np.searchsorted(is_least, firsts)]]
        cheapest[reached] = least
        before.append(chosen)
    path = [int((cheapest + ends).argmin())]
    for chosen in reversed(before):
        path.append(int(chosen[path[-1]]))
    return path[::-1]
