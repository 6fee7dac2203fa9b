"""What a search tries: plans for each budget, under assumptions that true runs decide on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from omnireuse.arguments.targets import SPREAD
from omnireuse.planning.candidate import FITTED, Candidate
from omnireuse.planning.path import OutputProducts
from omnireuse.planning.planner import Planner
from omnireuse.policies import Spread

__all__ = ["Candidates"]

GROWTHS = (2.0, 0.0, 4.0)
"""How errors grow on their way to the final latents (`Planner`), which full runs do not show: trials decide."""


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

    def _new_planner(self, growth: float) -> Planner:
        assert self._products is not None, "asked for where weights can be fitted"
        return Planner(self._products, self._coordinates, fewest=self._budgets[0], growth=growth)

    def to_settle_growth(self) -> dict[Candidate, float]:
        """Plans for the smallest budget, where growth counts most and runs cost least, with the growth of each."""
        if self._products is None:
            return {}
        plans: dict[tuple[int, ...], float] = {}
        for growth in GROWTHS:
            plans.setdefault(self._planner(growth).best(self._budgets[0]), growth)
        return {Candidate(steps=steps, forecaster=FITTED): growth for steps, growth in plans.items()}

    def for_budgets(self, growth: float) -> list[Candidate]:
        """The best plan for each budget."""
        return [self._for(budget, growth) for budget in self._budgets]

    def _for(self, budget: int, growth: float) -> Candidate:
        if self._products is not None:
            return Candidate(steps=self._planner(growth).best(budget), forecaster=FITTED)
        # The default itself, so that the profile says what it is worth.
        policy = Spread(num_computed=budget, **SPREAD)
        steps = tuple(sorted(policy.schedule(len(self._coordinates), tuple(self._coordinates))))
        return Candidate(steps=steps, forecaster="blend")
