"""What a generation has decided, before anything was done."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch

from omnireuse.diffusion.reuse.policy import StepView

__all__ = ["Choice"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What to do with one branch at one step, and why. Nothing has been done yet.

    Attributes:
        reuse: forecast instead of computing.
        reason: "policy", "together", or the guard that made the step compute ("first", "last", "unprimed", …).
        branch, denoiser, sample: whose choice it is; sample is a row of the batch, or None for all rows.
        view: what the policy saw.
        layout: of the inputs.
        is_changed: whether the layout differs from that of what is remembered, which is dropped then.
        signal: a copy of what was watched.
        host_seconds: what the decision took.
    """

    reuse: bool
    reason: str
    branch: str
    denoiser: int
    sample: int | None
    order: int
    view: StepView
    layout: Hashable
    is_changed: bool
    signal: torch.Tensor | None
    host_seconds: float
