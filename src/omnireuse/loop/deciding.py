"""The decision of one step: compute or reuse? A function of what is known, which changes nothing."""

from __future__ import annotations

import math
from collections.abc import Collection

from omnireuse.loop.branch_state import BranchState
from omnireuse.loop.policy import StepView
from omnireuse.loop.strategy import Strategy

__all__ = ["decision"]


def decision(
    strategy: Strategy,
    schedule: Collection[int] | None,
    state: BranchState,
    view: StepView,
    *,
    leader: bool | None,
    is_changed: bool,
    is_noiseless: bool,
    is_failed: bool,
) -> tuple[bool, str]:
    """Whether the step is reused, and why.

    Args:
        strategy: whose policy decides where nothing else does.
        schedule: the steps that it computes; None where it measures.
        state: what the branch remembers.
        view: the step.
        leader: the decision of the step's first branch, if this branch follows it.
        is_changed: whether the inputs have another layout than the remembered values.
        is_noiseless: whether an output cannot be told from x0 at this noise level.
        is_failed: whether something of the run has failed.

    Raises:
        StateError: a policy that depends on the number of steps, which is not known.
    """
    # The policy is asked before the guards, so that one that cannot serve this run says so at the first step.
    if leader is not None:
        is_wanted = leader
    elif is_failed:
        is_wanted = False
    elif schedule is not None:
        is_wanted = view.index not in schedule
    else:
        policy = strategy.policy
        is_wanted = policy.wants_reuse(policy.start() if is_changed else state.policy, view)
    must = "failed" if is_failed else _guard(strategy, schedule, state, view, is_changed)
    if must is None and is_wanted and is_noiseless:
        must = "noiseless"
    return is_wanted and must is None, must or ("policy" if leader is None else "together")


def _guard(
    strategy: Strategy, schedule: Collection[int] | None, state: BranchState, view: StepView, is_changed: bool
) -> str | None:
    """Why a step must compute, whatever the policy says; None where the policy may decide."""
    if view.index == 0:
        return "first"
    is_last = view.total is not None and view.index >= view.total - 1
    if is_last and strategy.policy.compute_last and (schedule is None or view.index in schedule):
        return "last"
    if is_changed:
        return "layout"
    if not state.primed:
        return "unprimed"
    if view.drift is not None and not math.isfinite(view.drift):
        return "nonfinite"
    longest = strategy.max_consecutive
    return "longest" if longest is not None and state.consecutive >= longest else None
