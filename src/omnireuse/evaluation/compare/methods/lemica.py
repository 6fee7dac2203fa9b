"""LeMiCa: the schedule whose worst interval costs the least, then the second worst, and so on.

Source: "Lexicographic Minimax Path Caching", arXiv 2511.00090: an interval costs the mean absolute change of the
finished picture where it alone is reused; the path of as many computed steps whose sorted costs come first in
lexicographic order. The public code (https://github.com/UnicomAI/LeMiCa) has finished schedules for some models and not
the search. As in that code the residual of the block stack is held. Ours: one calibration prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import omnireuse
from omnireuse.evaluation.compare.methods.base import Method, Setting
from omnireuse.evaluation.compare.methods.calibrating import Trials, calibrated
from omnireuse.evaluation.compare.methods.strategy import budgets, strategy_setting

if TYPE_CHECKING:
    from omnireuse.evaluation.compare.harness import Harness

__all__ = ["LEMICA", "minimax_path"]

PROMPTS = 1
WIDEST = 7


def minimax_path(costs: Mapping[tuple[int, int], float], steps: int, count: int) -> tuple[int, ...]:
    """The `count` steps from the first to the last whose intervals' costs, worst first, are lexicographically least."""
    best: dict[tuple[int, int], tuple[list[float], tuple[int, ...]]] = {(0, 1): ([], (0,))}
    for end in range(1, steps):
        for number in range(2, count + 1):
            found = [
                (
                    sorted((*best[start, number - 1][0], costs[start, end]), reverse=True),
                    (*best[start, number - 1][1], end),
                )
                for start in range(end)
                if (start, end) in costs and (start, number - 1) in best
            ]
            if found:
                best[end, number] = min(found)
    return best[steps - 1, count][1]


def _grid(harness: Harness) -> Iterator[Setting]:
    workload = calibrated(harness.workload)
    options = {"forecaster": "hold", "region": "blocks"}

    @cache
    def costs() -> dict[tuple[int, int], float]:
        trials, steps = Trials(workload, PROMPTS, options, power=1), workload.steps
        found = {(start, start + 1): 0.0 for start in range(steps - 1)}
        for start in range(steps - 2):
            for end in range(start + 2, min(start + WIDEST + 1, steps)):
                found[start, end] = trials.error(set(range(steps)) - set(range(start + 1, end)))
        return found

    for count in budgets(harness):

        def make(count: int = count) -> dict[str, Any]:
            policy = omnireuse.FixedSchedule(steps=minimax_path(costs(), workload.steps, count))
            return {"policy": policy, **options}

        yield strategy_setting("LeMiCa", make, computed=count, prompts=PROMPTS)


LEMICA = Method(key="lemica", name="LeMiCa, calibrated", family="peer", grid=_grid)
