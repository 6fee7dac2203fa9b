"""What a policy is: the part that answers "compute or reuse?" and touches no tensor.

A policy is a frozen, keyword-only dataclass. It gets scalars that are already equal on every rank, so all ranks answer
alike without talking. The runtime applies its guards after the policy has spoken and tells it what was really done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["Policy", "StepView"]


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


@runtime_checkable
class Policy(Protocol):
    """Compute or reuse? Three small functions; the state is an opaque value owned by the caller.

    A policy that means one certain signal names it in a class attribute `signal`; others take the region's default.

    A policy whose drift is to be measured since the last computed step says so in an attribute
    `drift_since_computed = True`; for others it is measured since the previous step, reused or not.
    """

    @property
    def needs_drift(self) -> bool:
        """Whether `StepView.drift` must be measured (costs one host synchronisation a decision)."""

    @property
    def needs_error(self) -> bool:
        """Whether `StepView.error` must be measured (costs one host synchronisation a computed step)."""

    def start(self) -> Any:
        """The state before the first decision of a branch in a run."""

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        """Whether this policy would reuse at this step. Pure."""

    def after(self, state: Any, view: StepView, reused: bool) -> Any:
        """The next state, given what was really done."""
