"""What a generation decides (`Choice`), and what hosts report of runs (`Event`) to hooks that count, show or log it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from omnireuse.policies.base import StepView

if TYPE_CHECKING:
    import torch

__all__ = [
    "Audit",
    "Choice",
    "Decision",
    "Event",
    "FellBack",
    "Hook",
    "Hooks",
    "RequestBegan",
    "RunEnded",
    "Unlike",
    "observing",
]

logger = logging.getLogger("omnireuse")


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """The decision for one branch at one step, with its reason. Not carried out yet.

    Attributes:
        reuse: forecast instead of computing.
        reason: "policy", "together", or the guard that made the step compute ("first", "last", "unprimed", …).
        branch, denoiser: its object.
        view: the policy's knowledge.
        layout: of the inputs.
        is_changed: whether the layout differs from that of what is remembered, which is dropped then.
        signal: a copy of what was watched.
        host_seconds: time that the decision took.
    """

    reuse: bool
    reason: str
    branch: str
    denoiser: int
    view: StepView
    layout: Hashable
    is_changed: bool
    signal: torch.Tensor | None
    host_seconds: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision that was carried out.

    Attributes:
        run: number of the run in this handle, counted from 1.
        step: denoising step, counted from 0.
        total: steps of the run; None if it is not known.
        branch: which call of the step: "cond", "uncond", "0", "1", …; "step" if one decision covers the whole step.
        sample: row of the batch that was decided on; None if one decision covers the batch.
        reused: whether the step was reused; False if it was computed.
        corrected: on a computed step, whether its output was corrected for the forecasts before it.
        reason: "policy", or the guard that made the step compute ("first", "last", "unprimed", …).
        sigma: the scheduler's noise level; None if it has none.
        noise: noise fraction in the latents, in [0, 1]; None if the scheduler's algebra is not known.
        drift: relative L1 change of the signal since the previous step; None if it was not measured.
        measured: the value that the policy compared with its threshold; None if it measured nothing.
        error: on a computed step, the relative L1 error that the forecast for it would have had; None if unknown.
        heading: measured with `error`: the cosine of the remembered value's change since the last computed step and
            its change before; near 1 if a line forecasts it, negative if it turned round. None if unknown.
        host_seconds: time spent on the decision and on the forecast, without the model's own computation.
    """

    run: int
    step: int
    total: int | None
    branch: str
    sample: int | None = None
    reused: bool
    corrected: bool = False
    reason: str
    sigma: float | None
    noise: float | None = None
    drift: float | None
    measured: float | None = None
    error: float | None
    heading: float | None = None
    host_seconds: float


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """A run has ended.

    Attributes:
        run: its number, as in its decisions.
        outcome: "aborted" if it ended before its last step, "broken" if its final latents are NaN or infinite.
        kept_bytes: most bytes of tensors that it held.
        seconds: from its beginning to its end; 0 if its end was not seen.
        companions: for models beside the denoiser, such as a ControlNet: the calls that were made, and all calls.
    """

    run: int
    outcome: Literal["whole", "aborted", "broken"] = "whole"
    kept_bytes: int = 0
    seconds: float = 0.0
    companions: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class FellBack:
    """Something else was done than was asked for; the log says why.

    Attributes:
        on: what was done instead.
    """

    on: str


@dataclass(frozen=True)
class Unlike:
    """The pipeline or a run is unlike those that a profile was measured on, so that its promise does not hold.

    Attributes:
        how: the difference, in words.
    """

    how: str


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A call that was made again in full after its pictures were done.

    Attributes:
        call: number of the call on this handle, from 1.
        errors: relative L1 error of the final latents of each picture.
        tolerance: that was promised; None if none was.
    """

    call: int
    errors: tuple[float, ...]
    tolerance: float | None = None

    @property
    def broken(self) -> int:
        """Pictures beyond the tolerance."""
        return 0 if self.tolerance is None else sum(error > self.tolerance for error in self.errors)


@dataclass(frozen=True)
class RequestBegan:
    """A request begins that has nothing to do with those before it: a profile's promise is judged anew."""


Event = Decision | RunEnded | FellBack | Unlike | RequestBegan | Audit
Hook = Callable[[Event], object]
"""Takes events, in the thread of the run that they are of."""


class Hooks:
    """The hooks of a host. One that comes or goes in the middle of a run does so from the next event on.

    Attributes:
        all: in the order in which they are called; replaced as a whole.
    """

    def __init__(self, *hooks: Callable[..., object]) -> None:
        self.all: tuple[Callable[..., object], ...] = hooks


def observing(observer: Callable[[Decision], object]) -> Hook:
    """A hook that hands decisions to an observer. What the observer raises is logged once, and hinders nobody."""
    has_failed = False

    def hook(event: Event) -> None:
        nonlocal has_failed
        if not isinstance(event, Decision):
            return
        try:
            observer(event)
        except Exception:
            if not has_failed:
                name = getattr(observer, "__qualname__", None) or type(observer).__name__
                logger.warning("the observer %s has raised; it goes on being called", name, exc_info=True)
            has_failed = True

    return hook
