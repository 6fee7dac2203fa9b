"""How many steps of a run compute, for a tuned plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from omnireuse.arguments.targets import SPREAD
from omnireuse.hooks.run import RunStart
from omnireuse.loop.policy import Policy
from omnireuse.policies import ErrorControl, Spread
from omnireuse.profiles.plan import Plan

__all__ = ["Budget", "budget_for"]

SHORTEST = 4
"""Steps of the shortest run that is tuned."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is asked of a run.

    Attributes:
        steps: computed steps as the untuned default spreads them.
        reuses: whether the untuned default follows them; it computes every step of a short run.
        noises: noise fraction at each step.
        rule: the untuned rule of a tolerance, where one is asked for and not a number of steps; `steps` are all then.
    """

    steps: tuple[int, ...]
    reuses: bool
    noises: tuple[float, ...]
    rule: ErrorControl | None = None

    @property
    def tolerance(self) -> float | None:
        """Relative L1 error of the final latents that nine of ten pictures stay within."""
        return None if self.rule is None else self.rule.tolerance

    @property
    def words(self) -> str:
        """What follows the measured pictures."""
        if self.tolerance is None:
            return f"{len(self.steps)} steps compute"
        return f"as many steps compute as a tolerance of {self.tolerance:g} needs"

    @property
    def none_found(self) -> str:
        """Why the untuned default stays."""
        if self.tolerance is None:
            return "no plan was clearly closer"
        return "no plan of fewer steps was seen to keep the tolerance"

    def plan_of(self, plans: Mapping[int, Plan]) -> Plan | None:
        """The plan that was kept for this budget."""
        return plans.get(len(self.steps)) if self.tolerance is None else next(iter(plans.values()), None)

    def beside(self, plans: Mapping[int, Plan], plan: Plan) -> dict[int, Plan]:
        """What to keep: the plan beside those of other numbers of steps. A tolerance has one plan alone."""
        return {**plans, len(self.steps): plan} if self.tolerance is None else {len(plan.steps): plan}


def budget_for(policy: Policy, start: RunStart) -> Budget | str:
    """The budget of a run under the untuned default; in words why it has none."""
    total = start.total
    if total is None or len(start.levels) < total:
        return "the number of steps is not known"
    levels = start.levels[:total]
    noises = tuple(level.coordinate for level in levels)
    if any(level.sample_weight is None for level in levels) or any(a <= b for a, b in pairwise(noises)):
        return f"the noise of {type(start.scheduler).__name__} is not known, or does not fall from step to step"
    if isinstance(policy, ErrorControl):
        if total < SHORTEST:
            return f"every step of a run of {total} computes"
        return Budget(steps=tuple(range(total)), reuses=False, noises=noises, rule=policy)
    schedule = policy.schedule(total, noises)
    if schedule is None:
        return "steps are chosen within the run"
    steps, is_short = tuple(sorted(schedule)), False
    if len(steps) == total and isinstance(policy, Spread) and policy.min_steps is not None:
        half = Spread(num_computed=max(-(-total // 2), 2), **SPREAD)
        steps, is_short = tuple(sorted(half.schedule(total, noises))), total >= SHORTEST
    if len(steps) == total or (total < SHORTEST):
        return f"every step of a run of {total} computes"
    return Budget(steps=steps, reuses=not is_short, noises=noises)
