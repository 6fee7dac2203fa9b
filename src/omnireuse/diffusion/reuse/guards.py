"""The guards that all policies share: what makes a step compute whatever the policy says."""

from __future__ import annotations

import math

from omnireuse.diffusion.reuse.branch_state import BranchState
from omnireuse.diffusion.reuse.policy import StepView
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["guard"]


def guard(strategy: Strategy, state: BranchState, view: StepView, *, is_changed: bool) -> str | None:
    """Why a step must compute; None where the policy may decide.

    Args:
        strategy: what to do.
        state: of the branch.
        view: what the policy sees.
        is_changed: whether the inputs have another layout than what is remembered.
    """
    longest = strategy.max_consecutive
    if view.index == 0:
        return "first"
    if view.total is not None and view.index >= view.total - 1 and strategy.policy.compute_last:
        return "last"
    if is_changed:
        return "layout"
    if not state.primed:
        return "unprimed"
    if view.drift is not None and not math.isfinite(view.drift):
        return "nonfinite"
    if longest is not None and state.consecutive >= longest:
        return "longest"
    return None
