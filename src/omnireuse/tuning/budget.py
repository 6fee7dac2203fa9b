"""What a run may compute if a plan is tuned for it, and what tuning itself may cost."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from omnireuse import messages
from omnireuse.errors import NotTunableError
from omnireuse.hooks.run import RunStart
from omnireuse.policies import ErrorControl
from omnireuse.policies.base import Policy
from omnireuse.policies.spread import Spread
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.target import Target

__all__ = ["JUDGED", "PRICE", "SHORT_ERROR", "Budget", "Ledger", "Work", "budget_for", "work_of"]

FROM = 10
"""The picture from which on the price holds: the first ones are measured."""
FROM_FOR_AIMS = 16
"""The same if something is asked of the pictures, so that more of them are measured to judge it."""
PRICE = 1.1
"""Most work of all pictures so far, as a multiple of that of computing every step."""

Work = NDArray[np.float64]
"""Calls of the denoiser, and the same times the elements of the latents: the price holds in both."""

SHORTEST = 4
"""Steps of the shortest run that is tuned."""
JUDGED = 6
"""Pictures that are measured at least if something is asked of them: some judge what was fitted to the others."""

SHORT_ERROR = 0.05
"""Largest error that a plan may leave in a measured picture if the untuned default computes every step."""
_WITHIN = f"leaves at most {SHORT_ERROR:.0%} error in the final latents of each measured picture"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The target of a run: a number of computed steps, a tolerance or a quality.

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
        """The steps that are computed without a plan; all for a tolerance, whose rule chooses them during the run."""
        return self.steps if self.reuses else tuple(range(len(self.noises)))

    @property
    def expected_share(self) -> float:
        """The share of steps that is expected to be computed with a plan: half for a target for pictures."""
        return 0.5 if self.aim else len(self.steps) / len(self.noises)

    @property
    def settled(self) -> int:
        """The picture from which on the price of tuning holds."""
        return FROM_FOR_AIMS if self.aim else FROM

    @property
    def waits(self) -> str:
        """Why measuring waits if the ledger does not allow more."""
        return f"all work stays within {PRICE:g} times that without reuse from picture {self.settled} on"

    @property
    def words(self) -> str:
        """What happens after the measured pictures, in words."""
        if self.aim:
            return f"as few steps are computed as keep {self.aim.name}={self.aim.value:g}"
        few = f"{len(self.steps)} steps are computed"
        return few if self.reuses else f"{few} if a plan {_WITHIN}, and else every step"

    @property
    def none_found(self) -> str:
        """What is used if no plan is found, and why, in words."""
        if not self.aim and not self.reuses:
            return f"every step is computed, as in runs so short without a plan; no plan {_WITHIN}"
        if not self.aim:
            return "the untuned default stays; no plan was clearly closer"
        stays = "the untuned default stays" if self.aim.quality is None else "every step is computed"
        kept = f"no plan of fewer steps was seen to keep the {self.aim.name} in nine of ten pictures"
        return f"{stays}; {kept}, and omnireuse.calibrate, which sees more of them, may find one"

    def words_of(self, plan: Plan) -> str:
        """What a plan gives in words; that of none if the untuned default stays."""
        evidence, total, text = plan.evidence, len(self.noises), self.none_found
        assert evidence is not None, "the store takes no plan without"
        if not evidence.stays:
            text = f"{len(plan.steps)} of {total} steps computed, "
            if evidence.closeness:
                mean = math.fsum(evidence.closeness) / len(evidence.closeness)
                text += f"{self.aim.value:g} dB expected of nine of ten pictures, {mean:.1f} dB on average"
            else:
                text += f"{evidence.error:.2%} error of the final latents expected"
            if evidence.untuned:
                text += f" ({math.fsum(evidence.untuned) / len(evidence.untuned):.2%} untuned)"
        if plan.full_every == 1:
            text += "; references computed in every call, as no lean calls were seen to add little error"
        elif plan.full_every is not None:
            calls = f"one of {plan.full_every} calls" if plan.full_every else "the first call"
            calls += " and at the last step" if total - 1 in plan.steps else ""
            text += f"; references computed in {calls}, {evidence.error:.2%} error with that"
        return text

    def plan_of(self, plans: Mapping[int, Plan]) -> Plan | None:
        """The saved plan for this budget."""
        return next(iter(plans.values()), None) if self.aim else plans.get(len(self.steps))

    def with_plan(self, plans: Mapping[int, Plan], plan: Plan) -> dict[int, Plan]:
        """The plans to save: this one with those of other numbers of steps. A target for pictures has one alone."""
        return {len(plan.steps): plan} if self.aim else {**plans, len(self.steps): plan}


def budget_for(policy: Policy, start: RunStart, target: Target) -> Budget:
    """The budget of a run under the untuned default of a target.

    Raises:
        NotTunableError: it has none.
    """
    total = start.total
    if total is None or len(start.levels) < total:
        raise NotTunableError("the number of steps is not known")
    levels = start.levels[:total]
    noises, elements = tuple(level.coordinate for level in levels), math.prod(start.shape)
    if any(level.sample_weight is None for level in levels) or any(a <= b for a, b in pairwise(noises)):
        raise NotTunableError(messages.NOISE_NOT_FALLING, scheduler=type(start.scheduler).__name__)
    rule = policy if isinstance(policy, ErrorControl) else None
    aim = target if rule is None else Target("tolerance", rule.tolerance)
    if aim.is_of_results:
        if total < SHORTEST:
            raise NotTunableError(f"every step of a run of {total} is computed")
        return Budget(steps=tuple(range(total)), reuses=False, noises=noises, aim=aim, rule=rule, elements=elements)
    schedule = policy.schedule(total, noises)
    if schedule is None:
        raise NotTunableError("steps are chosen within the run")
    steps, is_short = tuple(sorted(schedule)), False
    if len(steps) == total and isinstance(policy, Spread) and policy.min_steps is not None:
        half = Spread(num_computed=max(-(-total // 2), 2))
        steps, is_short = tuple(sorted(half.schedule(total, noises))), total >= SHORTEST
    if len(steps) == total or total < SHORTEST:
        raise NotTunableError(f"every step of a run of {total} is computed")
    return Budget(steps=steps, reuses=not is_short, noises=noises, elements=elements)


def work_of(calls: float, elements: int) -> Work:
    """The work of so many calls on latents of so many elements."""
    return np.array([calls, calls * elements])


class Ledger:
    """Adds up work, and tells whether tuning may spend more. Threads may share it."""

    def __init__(self) -> None:
        self._pictures, self._plain, self._spent = 0, work_of(0, 0), work_of(0, 0)
        self._lock = threading.Lock()
        self.calls_a_step = 1.0
        """Calls of the denoiser in each step of the latest picture."""

    def made(self, plain: Work, share: float) -> None:
        """Note a picture.

        Args:
            plain: its work if every step is computed.
            share: of its steps that were computed.
        """
        with self._lock:
            self._pictures += 1
            self._plain = self._plain + plain
            self._spent = self._spent + share * plain

    def spend(self, work: Work) -> None:
        """Note work beside the pictures; a negative amount takes some back."""
        with self._lock:
            self._spent = self._spent + work

    def allows(self, work: Work, picture: Work, share: float, *, full: int = 0, by: int = FROM) -> bool:
        """Whether the price still holds after so much work beside the pictures.

        Args:
            work: to be spent.
            picture: work of a picture like the present one if every step is computed. As many as are missing to `by`
                are taken to follow.
            share: of their steps that are computed.
            full: pictures to come before them that compute every step.
            by: the picture from which on the price holds.
        """
        with self._lock:
            ahead = max(by - self._pictures - full, 0)
            spent = self._spent + work + (full + share * ahead) * picture
            plain = self._plain + (full + ahead) * picture
            return bool((spent <= PRICE * plain + 1e-6).all())
