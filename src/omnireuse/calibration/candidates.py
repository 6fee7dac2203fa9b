"""What a search tries: plans for each budget, under assumptions that true runs decide on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from omnireuse.arguments.targets import SPREAD
from omnireuse.planning.candidate import FITTED, Candidate
from omnireuse.planning.path import OutputProducts
from omnireuse.planning.planner import DISTURBANCE, Planner
from omnireuse.policies import Spread

__all__ = ["LEAST_GAIN", "Candidates"]

GROWTHS = (2.0, 0.0, 4.0)
"""How errors grow on their way to the final latents (`Planner`), which full runs do not show: trials decide."""
OTHERS = ((1.0, DISTURBANCE), (-1.0, DISTURBANCE), (0.0, 0.03), (0.0, 1.0), (2.0, DISTURBANCE))
"""What else may be assumed: by how much growth differs from the best one of `GROWTHS`, and the disturbance."""
LEAST_GAIN = 0.1
"""A candidate that promises less than this, in dB, is not tried."""


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

    def for_budgets(self, growth: float) -> dict[int, dict[Candidate, float]]:
        """For each budget the best plan, then others by what they promise: each with its gain in dB over the first, if
        what its plan assumes is right."""
        return {budget: self._for(budget, growth) for budget in self._budgets}

    def _for(self, budget: int, growth: float) -> dict[Candidate, float]:
        if self._products is None:
            # The default itself, so that the profile says what it is worth.
            policy = Spread(num_computed=budget, **SPREAD)
            steps = tuple(sorted(policy.schedule(len(self._coordinates), tuple(self._coordinates))))
            return {Candidate(steps=steps, forecaster="blend"): 0.0}
        first = self._planner(growth).best(budget)
        gains: dict[tuple[int, ...], float] = {}
        for more, disturbance in OTHERS:
            planner = self._planner(max(growth + more, 0.0), disturbance)
            steps = planner.best(budget)
            if steps != first:
                gains[steps] = max(planner.expected(steps) - planner.expected(first), gains.get(steps, 0.0))
        ranked = sorted((each for each in gains.items() if each[1] >= LEAST_GAIN), key=lambda each: -each[1])
        return {Candidate(steps=steps, forecaster=FITTED): gain for steps, gain in ((first, 0.0), *ranked)}
