"""What a search tries: plans for each budget, under assumptions that true runs decide on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate
from omnireuse.diffusion.calibration.path import OutputProducts
from omnireuse.diffusion.calibration.planner import Planner
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.targets import SPREAD

__all__ = ["LEAST_GAIN", "Candidates", "Prospect"]

GROWTHS = (2.0, 0.0, 4.0)
"""How errors grow on their way to the final latents (`Planner`), which full runs do not show: trials decide."""
DISTURBANCE = 0.3
"""Chosen on ``shapes-flux``; plans for ``shapes-wan`` do as well with it (``python -m bench calibration``)."""
OTHERS = ((1.0, DISTURBANCE), (-1.0, DISTURBANCE), (0.0, 0.03), (0.0, 1.0), (2.0, DISTURBANCE))
"""What else may be assumed: by how much growth differs from the best one of `GROWTHS`, and the disturbance."""
LEAST_GAIN = 0.1
"""A candidate that promises less than this, in dB, is not tried."""


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """A candidate with the gain in dB over the first candidate of its budget, if what its plan assumes is right."""

    candidate: Candidate
    gain: float = 0.0


class Candidates:
    """Plans from full runs.

    Args:
        products: of the outputs; None where no weights can be fitted.
        coordinates: of each step.
        budgets: numbers of computed steps, in rising order.
    """

    def __init__(self, products: OutputProducts | None, coordinates: Sequence[float], budgets: Sequence[int]) -> None:
        self._products, self._coordinates, self._budgets = products, coordinates, budgets
        self._planner = cache(self._new_planner)

    def _new_planner(self, growth: float, disturbance: float = DISTURBANCE) -> Planner:
        assert self._products is not None, "asked for where weights can be fitted"
        fewest = self._budgets[0]
        return Planner(self._products, self._coordinates, fewest=fewest, growth=growth, disturbance=disturbance)

    def to_settle_growth(self) -> dict[Candidate, float]:
        """Plans for the smallest budget, where growth counts most and runs cost least, with the growth of each."""
        if self._products is None:
            return {}
        plans: dict[tuple[int, ...], float] = {}
        for growth in GROWTHS:
            plans.setdefault(self._planner(growth).best(self._budgets[0]), growth)
        return {Candidate(steps=steps, forecaster=FITTED): growth for steps, growth in plans.items()}

    def for_budgets(self, growth: float) -> dict[int, list[Prospect]]:
        """For each budget the best plan, then others by what they promise."""
        return {budget: self._for(budget, growth) for budget in self._budgets}

    def _for(self, budget: int, growth: float) -> list[Prospect]:
        if self._products is None:
            # The default itself, so that the profile says what it is worth.
            policy = FixedSchedule(num_computed=budget, **SPREAD)
            steps = tuple(sorted(policy.schedule(len(self._coordinates), tuple(self._coordinates))))
            return [Prospect(candidate=Candidate(steps=steps, forecaster="blend"))]
        first = self._planner(growth).best(budget)
        gains: dict[tuple[int, ...], float] = {}
        for more, disturbance in OTHERS:
            planner = self._planner(max(growth + more, 0.0), disturbance)
            steps = planner.best(budget)
            if steps != first:
                gains[steps] = max(planner.expected(steps) - planner.expected(first), gains.get(steps, 0.0))
        ranked = sorted(gains.items(), key=lambda each: -each[1])
        return [
            Prospect(candidate=Candidate(steps=steps, forecaster=FITTED), gain=gain)
            for steps, gain in ((first, 0.0), *ranked)
        ]
