"""BudCache: for each budget the schedule whose pictures are closest to full runs, by annealing and hill climbing.

Source: "Budget-Constrained Step-Level Diffusion Caching", arXiv 2606.13496, and its public code
(https://github.com/Westlake-AGI-Lab/BudCache): the last velocity is held; swaps and shifts keep the budget; simulated
annealing from 0.05 to 10⁻⁵ from a random schedule, then hill climbing. The code anneals 200 times on one prompt and
then tries whole neighbourhoods. Ours: an even schedule at first; fewer trials, of the pictures' squared error, whose
relative change is annealed; hill climbing takes the first shift that helps. Left out: the second stage, which trains
the noise levels of the schedule by gradients.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from omnireuse_lab.peers.calibrating import HELD, ScheduleTrials, searched

__all__ = ["BUD_CACHE", "annealed"]

ANNEALED = 40
CLIMBED = 24
HOT, COLD = 0.05, 1e-5

Steps = tuple[int, ...]


def annealed(
    error: Callable[[Steps], float], steps: int, count: int, *, trials: int = ANNEALED, climbs: int = CLIMBED
) -> Steps:
    """The best schedule found of `count` computed steps, the first and the last among them.

    Args:
        error: of a schedule, above 0.
        trials, climbs: how many schedules annealing and hill climbing may try.
    """
    chance = random.Random(0)
    now = best = tuple(round(i * (steps - 1) / (count - 1)) for i in range(count))
    for trial in range(trials if count < steps else 0):
        left = chance.randrange(1, count - 1)
        free = [step for step in range(1, steps - 1) if step not in now]
        near = [step for step in (now[left] - 1, now[left] + 1) if step in free]
        tried = _moved(now, left, chance.choice(near if near and chance.random() < 0.5 else free))
        temperature = HOT * (COLD / HOT) ** (trial / max(trials - 1, 1))
        worse = error(tried) / error(now) - 1
        if worse <= 0 or chance.random() < math.exp(-worse / temperature):
            now = tried
        best = min(best, now, key=error)
    while climbs > 0:
        shifts = [
            _moved(best, i, best[i] + by)
            for i in range(1, count - 1)
            for by in (-1, 1)
            if 0 < best[i] + by < steps - 1 and best[i] + by not in best
        ]
        found = None
        for tried in shifts[:climbs]:
            climbs -= 1
            if error(tried) < error(best):
                found = tried
                break
        if found is None:
            return best
        best = found
    return best


def _moved(steps: Steps, place: int, to: int) -> Steps:
    return tuple(sorted((*steps[:place], to, *steps[place + 1 :])))


def _search(trials: ScheduleTrials, steps: int, counts: Sequence[int]) -> dict[int, Steps]:
    return {count: annealed(trials.error, steps, count) for count in counts}


BUD_CACHE = searched(
    "bud-cache",
    "BudCache",
    _search,
    prompts=2,
    options=HELD,
    most=3,
    trials=ANNEALED + CLIMBED,
)
