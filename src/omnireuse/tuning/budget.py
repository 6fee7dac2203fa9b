"""How many steps of a run compute, for a tuned plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from omnireuse.errors import NotTunable
from omnireuse.hooks.run import RunStart
from omnireuse.policies import ErrorControl
from omnireuse.policies.base import Policy
from omnireuse.policies.spread import Spread
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.target import Target
from omnireuse.tuning.ledger import FROM, FROM_FOR_AIMS

__all__ = ["JUDGED", "SHORT_ERROR", "Budget", "budget_for"]

SHORTEST = 4
"""Steps of the shortest run that is tuned."""
JUDGED = 6
"""Pictures that are measured at least where something is asked of them: some judge what was fitted to the others."""

SHORT_ERROR = 0.05
"""Largest error that a plan may leave in a measured picture where the untuned default computes every step."""
_WITHIN = f"leaves at most {SHORT_ERROR:.0%} error in the final latents of each measured picture"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is asked of a run.

    Attributes:
        steps: computed steps as the untuned default spreads them.
        reuses: whether the untuned default follows them; it computes every step of a short run.
        noises: noise fraction at each step.
        aim: a quality or a tolerance, if that is asked for and not a number of steps; `steps` are all then.
        rule: the untuned rule of a tolerance.
        elements: of the latents, with the batch.
    """

    steps: tuple[int, ...]
    reuses: bool
    noises: tuple[float, ...]
    aim: Target = field(default_factory=Target)
    rule: ErrorControl | None = None
    elements: int = 1

    @property
    def untuned_steps(self) -> tuple[int, ...]:
        """The steps that compute without a plan; all for a tolerance, whose rule chooses them in the run."""
        return self.steps if self.reuses else tuple(range(len(self.noises)))

    @property
    def expected_share(self) -> float:
        """The share of steps that a plan is expected to compute: half for what is asked of pictures."""
        return 0.5 if self.aim else len(self.steps) / len(self.noises)

    @property
    def settled(self) -> int:
        """The picture from which on the price of tuning holds."""
        return FROM_FOR_AIMS if self.aim else FROM

    @property
    def words(self) -> str:
        """What follows the measured pictures."""
        if self.aim:
            return f"as few steps are computed as keep {self.aim.name}={self.aim.value:g}"
        few = f"{len(self.steps)} steps are computed"
        return few if self.reuses else f"{few} if a plan {_WITHIN}, and else every step"

    @property
    def none_found(self) -> str:
        """What stays without a plan, and why."""
        if not self.aim and not self.reuses:
            return f"every step is computed, as in runs so short without a plan; no plan {_WITHIN}"
        if not self.aim:
            return "the untuned default stays; no plan was clearly closer"
        stays = "the untuned default stays" if self.aim.quality is None else "every step is computed"
        kept = f"no plan of fewer steps was seen to keep the {self.aim.name} in nine of ten pictures"
        return f"{stays}; {kept}, and omnireuse.calibrate, which sees more of them, may find one"

    def plan_of(self, plans: Mapping[int, Plan]) -> Plan | None:
        """The plan that was kept for this budget."""
        return next(iter(plans.values()), None) if self.aim else plans.get(len(self.steps))

    def beside(self, plans: Mapping[int, Plan], plan: Plan) -> dict[int, Plan]:
        """What to keep: the plan beside those of other numbers of steps. What is asked of pictures has one alone."""
        return {len(plan.steps): plan} if self.aim else {**plans, len(self.steps): plan}


def budget_for(policy: Policy, start: RunStart, target: Target) -> Budget:
    """The budget of a run under the untuned default of a target.

    Raises:
        NotTunable: it has none.
    """
    total = start.total
    if total is None or len(start.levels) < total:
        raise NotTunable("the number of steps is not known")
    levels = start.levels[:total]
    noises, elements = tuple(level.coordinate for level in levels), math.prod(start.shape)
    if any(level.sample_weight is None for level in levels) or any(a <= b for a, b in pairwise(noises)):
        raise NotTunable(
            f"the noise of {type(start.scheduler).__name__} is not known, or does not fall from step to step"
        )
    rule = policy if isinstance(policy, ErrorControl) else None
    aim = target if rule is None else Target("tolerance", rule.tolerance)
    if aim.is_of_results:
        if total < SHORTEST:
            raise NotTunable(f"every step of a run of {total} is computed")
        return Budget(steps=tuple(range(total)), reuses=False, noises=noises, aim=aim, rule=rule, elements=elements)
    schedule = policy.schedule(total, noises)
    if schedule is None:
        raise NotTunable("steps are chosen within the run")
    steps, is_short = tuple(sorted(schedule)), False
    if len(steps) == total and isinstance(policy, Spread) and policy.min_steps is not None:
        half = Spread(num_computed=max(-(-total // 2), 2))
        steps, is_short = tuple(sorted(half.schedule(total, noises))), total >= SHORTEST
    if len(steps) == total or total < SHORTEST:
        raise NotTunable(f"every step of a run of {total} is computed")
    return Budget(steps=steps, reuses=not is_short, noises=noises, elements=elements)
