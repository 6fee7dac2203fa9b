"""The protocol of a policy: it answers "compute or reuse?" from scalars and touches no tensor.

A policy is a frozen, keyword-only dataclass. The scalars that it sees are equal on all ranks, so all ranks answer
alike. The generation applies the guards that all policies share, and tells the policy what was really done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple

from omnireuse import messages
from omnireuse.errors import ConfigError, OmniReuseError, StateError

__all__ = [
    "SAME_NOISE",
    "Limit",
    "Policy",
    "Schedule",
    "StepView",
    "ThresholdPolicy",
    "check_reserved_names",
    "known_total",
    "unasked",
]

SAME_NOISE = 1e-3
"""Shares of noise that differ by less are taken for the same."""


class Limit(NamedTuple):
    """An argument of a policy that can keep it from reusing: its name and its value."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class StepView:
    """What a policy knows when it decides on a step.

    Attributes:
        index: denoising step, counted from 0.
        total: number of steps of this run; None if it is not known.
        sigma: the scheduler's noise level at this step; None if it has none.
        drift: relative L1 change of the signal since the previous step, or since the last computed one
            (`Policy.drift_since_computed`); None without a signal or at the first step.
        branch: order of this call among the step's calls of its denoiser; 0 if one decision covers the step.
        error: relative L1 error of the last forecast that was compared with the truth: of x0 if the scheduler's
            algebra is known, else of the remembered value; None before that.
        noise: noise fraction in the latents, σ/(α+σ), in [0, 1]; None if the scheduler's algebra is not known.
        noises: `noise` at every step of this run; None if it is not known.
        coordinate: position of the step, as forecasters measure distance; the step index if nothing else is known.
        order: degree of the forecaster's polynomial; 0 if it has none.
    """

    index: int
    total: int | None = None
    sigma: float | None = None
    drift: float | None = None
    error: float | None = None
    branch: int = 0
    noise: float | None = None
    noises: tuple[float, ...] | None = None
    coordinate: float | None = None
    order: int = 0


class Policy(ABC):
    """The rule that decides whether a step is computed or reused. Only `wants_reuse` must be written."""

    needs_drift: ClassVar[bool] = False
    """True if `StepView.drift` is measured: one host synchronisation a decision."""
    needs_error: ClassVar[bool] = False
    """True if `StepView.error` is measured: one host synchronisation a computed step."""
    drift_since_computed: ClassVar[bool] = False
    """True if drift is measured since the last computed step, and not since the previous one."""
    signal: ClassVar[str | None] = None
    """The signal that this policy watches; None takes the region's default."""

    @property
    def expects_reuse(self) -> bool:
        """True if a run without any reuse deserves a warning."""
        return True

    @property
    def compute_last(self) -> bool:
        """True if the last step of a run computes whatever the policy says."""
        return True

    @property
    def limit(self) -> Limit | None:
        """The argument that `measured` is compared with; None if nothing is measured."""
        return None

    def warmup_limit(self, total: int | None) -> Limit | None:
        """The argument by which the first steps are always computed, and their number in a run of `total` steps."""
        return None

    def measured(self, state: Any, view: StepView) -> float | None:
        """The value compared with the limit at this step; None if unknown."""
        return None

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int] | None:
        """The steps that are computed in a run of `total` ≥ 1 steps; None if that depends on what is measured.

        A policy with a schedule is asked nothing else in such a run. `noises` is the noise fraction at each step.
        """
        return None

    def caution(self, total: int, noises: tuple[float, ...] | None = None) -> str | None:
        """A note to the user on this policy in runs of `total` steps; logged once for each handle."""
        return None

    def start(self) -> Any:
        """The state before the first decision of a branch in a run. The caller keeps it."""
        return None

    @abstractmethod
    def wants_reuse(self, state: Any, view: StepView) -> bool:
        """True if this policy would reuse at this step. Pure."""

    def after(self, state: Any, view: StepView, reused: bool) -> Any:
        """The next state, given what was really done."""
        return state


def known_total(policy: Policy, view: StepView) -> int:
    """The number of steps of the run.

    Raises:
        StateError: it is not known.
    """
    if view.total is None:
        raise StateError(messages.STEPS_UNKNOWN, policy=policy)
    return view.total


_RESERVED = ("limit", "warmup_limit", "measured", "schedule", "caution", "start", "wants_reuse", "after")
"""Attributes of every policy. A field of the same name would hide one."""


def check_reserved_names(policy: Policy) -> None:
    """Refuse a policy with a field that hides a part of the protocol.

    Raises:
        ConfigError: a field has such a name.
    """
    name = type(policy).__name__
    named: set[str] = {each.name for each in fields(policy)} if is_dataclass(policy) else set()
    taken = [each for each in _RESERVED if each in named]
    if taken:
        raise ConfigError(f"{name}.{taken[0]}: a field must not hide Policy.{taken[0]}; give the field another name")


_PROBE = 12
"""Steps of a made-up run."""


def unasked(policy: Policy, figures: Sequence[str] = ("drift", "error")) -> str | None:
    """A figure that a policy decides by and has not asked for, in words; None if there is none.

    A made-up run is decided twice, with the figure unknown and with it known, and both must be decided alike.

    Args:
        figures: to look for: "drift", "error" or both.
    """
    try:
        if policy.schedule(_PROBE) is not None:
            return None
    except OmniReuseError:  # a schedule that a run of so many steps cannot follow
        return None
    for figure in figures:
        flag = f"needs_{figure}"
        if getattr(policy, flag) or (figure == "drift" and policy.signal is not None):
            continue
        without, again, *known = (_decided(policy, figure, value) for value in (None, None, 0.0, 9.0))
        if without == again and any(isinstance(each, list) and each != without for each in known):
            return (
                f"{type(policy).__name__} decides by view.{figure}, which is None unless {flag} is True; write "
                f"{flag} = True in the class"
            )
    return None


def _decided(policy: Policy, figure: str, value: float | None) -> list[bool] | str:
    """The decisions of a made-up run in which one figure has this value; the error of a policy that cannot decide."""
    noises = tuple(1 - step / _PROBE for step in range(_PROBE))
    answers: list[bool] = []
    try:
        state = policy.start()
        for step, noise in enumerate(noises):
            known = {name: 0.1 if getattr(policy, f"needs_{name}") else None for name in ("drift", "error")}
            drift, missed = ({**known, figure: value} if step else known).values()
            place: Any = {"sigma": noise, "noise": noise, "noises": noises, "coordinate": noise}
            view = StepView(index=step, total=_PROBE, drift=drift, error=missed, order=1, **place)
            answers.append(policy.wants_reuse(state, view))
            state = policy.after(state, view, answers[-1] and step > 0)
    except Exception as error:  # whatever a policy raises; it raises it again in a run
        return repr(error)
    return answers


class ThresholdPolicy(Policy):
    """Reuse while what is measured stays below a threshold, behind a warm-up."""

    threshold_name: ClassVar[str]
    """The field with the threshold."""
    warmup_name: ClassVar[str | None] = None
    """The field with the number of first steps that are always computed."""

    @property
    def limit(self) -> Limit:
        return Limit(self.threshold_name, getattr(self, self.threshold_name))

    def warmup_limit(self, total: int | None) -> Limit | None:
        """The warm-up, if there is one."""
        return None if self.warmup_name is None else Limit(self.warmup_name, getattr(self, self.warmup_name))

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        """True if this step's value is known and below the threshold."""
        measured = self.measured(state, view)
        return measured is not None and measured < self.limit.value


class Schedule(Policy):
    """Compute at steps chosen beforehand and reuse at all others. Only `schedule` must be written."""

    @abstractmethod
    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        """The steps that are computed in a run of `total` ≥ 1 steps with these noise fractions."""

    def wants_reuse(self, state: None, view: StepView) -> bool:
        return view.index not in self.schedule(known_total(self, view), view.noises)
