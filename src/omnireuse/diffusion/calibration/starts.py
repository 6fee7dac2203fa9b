"""What a search begins from: spreads that have done well, and what the recorded errors say is cheapest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate
from omnireuse.diffusion.calibration.intervals import SLOPES, gap_costs
from omnireuse.diffusion.calibration.paths import best_paths
from omnireuse.diffusion.calibration.record import Distances
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.targets import POWER

__all__ = ["starts"]

POWERS = (1.0, 1.35, 1.7, 2.2)
"""How steps are spread: without guidance nearly evenly, with it closest at the beginning."""
SPARED = (0.0, 0.08)
"""Shares of the run after the last computed step, which fitted weights can do without."""


def starts(
    recorded: Sequence[Distances], budgets: Sequence[int], total: int, *, can_fit: bool
) -> dict[int, list[Candidate]]:
    """What to begin from for each budget, the default first.

    Where weights can be fitted, no other forecaster came near them on the reference images, so all but the default have
    them. Else they are the paths that each forecaster's errors, as the recorded distances tell them, make cheapest.
    """
    distances = Distances(at=recorded[0].at, squared=np.concatenate([each.squared for each in recorded]))
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
    for forecaster in ("blend",) if can_fit else SLOPES:
        paths = best_paths(gap_costs(distances, forecaster), max(budgets))
        for budget in budgets:
            if budget in paths:
                found[budget].append(Candidate(steps=paths[budget], forecaster=FITTED if can_fit else forecaster))
    return found


def spread(budget: int, power: float, end: int) -> tuple[int, ...]:
    """So many steps from 0 to `end` - 1."""
    return tuple(sorted(FixedSchedule(num_computed=budget, power=power).schedule(end)))
