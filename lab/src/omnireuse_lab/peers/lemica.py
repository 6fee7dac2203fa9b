"""LeMiCa: the schedule whose worst interval costs the least, then the second worst, and so on.

Source: "Lexicographic Minimax Path Caching", arXiv 2511.00090: an interval costs the mean absolute change of the
finished picture if it alone is reused; the path of as many computed steps whose sorted costs come first in
lexicographic order. The public code (https://github.com/UnicomAI/LeMiCa) has finished schedules for some models and not
the search. As in that code the residual of the block stack is held. Ours: one calibration prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from omnireuse_lab.peers.calibrating import ScheduleTrials, best_path, searched

__all__ = ["LEMICA", "worst_first"]

WIDEST = 7


def worst_first(costs: Sequence[float]) -> list[float]:
    """What is least, in lexicographic order, for the best path."""
    return sorted(costs, reverse=True)


def _search(trials: ScheduleTrials, steps: int, counts: Sequence[int]) -> dict[int, tuple[int, ...]]:
    costs = {(start, start + 1): 0.0 for start in range(steps - 1)}
    for start in range(steps - 2):
        for end in range(start + 2, min(start + WIDEST + 1, steps)):
            costs[start, end] = trials.error(set(range(steps)) - set(range(start + 1, end)))
    return {count: best_path(costs, steps, count, worst_first) for count in counts}


LEMICA = searched(
    "lemica", "LeMiCa", _search, prompts=1, options={"forecaster": "hold", "region": "blocks"}, power=1
)  # fmt: skip
