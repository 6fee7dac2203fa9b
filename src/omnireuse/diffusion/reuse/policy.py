"""What a policy is: the part that answers "compute or reuse?" and touches no tensor.

A policy is a frozen, keyword-only dataclass that inherits `Policy`. It gets scalars that are already equal on every
rank, so all ranks answer alike without talking. Guards that all policies share are applied after it has answered, and
it is told what was really done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Limit", "Policy", "StepView"]


class Limit(NamedTuple):
    """An argument of a policy that can keep it from reusing.

    Attributes:
        name: of the argument.
        value: what it comes to.
    """

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class StepView:
    """All that a policy may know about the decision at hand.

    Attributes:
        index: denoising step, counted from 0.
        total: number of steps of this run; None where nobody told it.
        sigma: the scheduler's noise level at this step; None where it has none.
        drift: relative L1 change of the watched signal since the previous step, or since the last computed one for a
            policy that asks for that; None without a signal or at the first step.
        branch: order of this call among the step's calls of its denoiser; 0 where one decision covers the step.
        error: relative L1 error of the last forecast that could be compared with the truth: of the denoised sample x0
            where the scheduler's algebra is known, else of the remembered quantity; None before that.
        noise: share of noise in the latents, σ/(α+σ), in [0, 1]; None where the scheduler's algebra is not known.
        noises: share of noise at every step of this run; None where the scheduler's algebra is not known.
        at: the coordinate that forecasters measure distance in; the step index where nothing else is known.
        order: degree of the forecaster's polynomial; 0 where it has none.
    """

    index: int
    total: int | None = None
    sigma: float | None = None
    drift: float | None = None
    error: float | None = None
    branch: int = 0
    noise: float | None = None
    noises: tuple[float, ...] | None = None
    at: float | None = None
    order: int = 0


class Policy(ABC):
    """Compute or reuse? The state is an opaque value owned by the caller.

    Only `wants_reuse` must be written. Everything else has the default of a policy that measures nothing and keeps no
    state.
    """

    @property
    def needs_drift(self) -> bool:
        """Whether `StepView.drift` must be measured (costs one host synchronisation a decision)."""
        return False

    @property
    def needs_error(self) -> bool:
        """Whether `StepView.error` must be measured (costs one host synchronisation a computed step)."""
        return False

    @property
    def drift_since_computed(self) -> bool:
        """Whether drift is measured since the last computed step, and not since the previous one."""
        return False

    @property
    def asks_for_reuse(self) -> bool:
        """Whether a run without any reuse is not what was asked for, so that a warning says why."""
        return True

    @property
    def limit(self) -> Limit | None:
        """The argument that `measured` is held against; None where nothing is."""
        return None

    def measured(self, state: Any, view: StepView) -> float | None:
        """What is held against the threshold at this step; None where nothing is known yet."""
        return None

    def warmup_of(self, total: int | None) -> Limit | None:
        """How many steps at the start of a run of `total` steps compute whatever is measured; None where none do."""
        return None

    @property
    def signal(self) -> str | None:
        """The one signal that this policy means; None takes the region's default."""
        return None

    @property
    def compute_last(self) -> bool:
        """Whether the last step of a run computes whatever the policy says."""
        return True

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int] | None:
        """The steps that compute in a run of `total` steps, where that is known ahead; None where it depends on what is
        measured.

        Args:
            total: steps of the run, ≥ 1.
            noises: share of noise at each step, where it is known.
        """
        return None

    def caution(self, total: int, noises: tuple[float, ...] | None = None) -> str | None:
        """What a user should know of this policy in runs of `total` steps before one begins, said once a handle; None
        as a rule."""
        return None

    def start(self) -> Any:
        """The state before the first decision of a branch in a run."""
        return None

    @abstractmethod
    def wants_reuse(self, state: Any, view: StepView) -> bool:
        """Whether this policy would reuse at this step. Pure."""

    def after(self, state: Any, view: StepView, reused: bool) -> Any:
        """The next state, given what was really done."""
        return state
