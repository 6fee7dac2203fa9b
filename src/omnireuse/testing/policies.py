"""The contract of a policy."""

from __future__ import annotations

import copy
import math
import pickle
import random
import sys
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any, TypeVar

from omnireuse.errors import ConfigError, StateError
from omnireuse.policies.base import Policy, StepView, check_reserved_names, unasked

__all__ = ["check_policy", "unpickled"]

T = TypeVar("T")


def unpickled(value: T) -> T:
    """The value after pickle and back; the value itself if its class was defined inside a function or a page, which
    pickle cannot find."""
    cls = type(value)
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    again: T = pickle.loads(pickle.dumps(value)) if found is cls else value
    return again


TOTALS = (1, 2, 3, 8, 28, 50)
FIGURES = (None, 0.0, 1e-6, 0.05, 0.5, 3.0, math.inf, math.nan)


def check_policy(policy: Policy, *, totals: tuple[int, ...] = TOTALS) -> None:
    """Drive a policy through made-up runs.

    Checked: it is a frozen dataclass that is equal to its copy and survives pickle, and no field hides a part of
    `Policy`; `wants_reuse` answers the same when it is asked twice and changes neither policy nor state; a state is
    carried from step to step; any drift and error, also None and non-finite ones, gets an answer; a policy that decides
    by one of them has asked for it (`needs_drift`, `needs_error`); equal runs get equal answers; a schedule is the
    steps that are computed.

    Args:
        totals: numbers of steps of the runs.
    """
    name = type(policy).__name__
    assert not isinstance(policy, type), f"check_policy needs a policy, got a class; write {policy.__name__}()"
    assert isinstance(policy, Policy), f"{name} must inherit omnireuse.Policy"
    assert is_dataclass(policy), f"{name} must be a dataclass, so that it has a repr and can be compared"
    try:
        check_reserved_names(policy)
    except ConfigError as error:
        raise AssertionError(str(error)) from None
    _check_frozen(policy)
    assert copy.deepcopy(policy) == policy, f"{name}: a deep copy must be equal"
    assert unpickled(policy) == policy, f"{name}: what comes back from pickle must be equal"
    assert (missing := unasked(policy)) is None, missing
    for total in totals:
        answers = [_run(policy, total, seed=total) for _ in range(2)]
        assert answers[0] == answers[1], f"{name}: two equal runs of {total} steps must get equal answers"
        _check_schedule(policy, total)
    states = {repr(policy.start())}
    for total in totals:
        _run(policy, total, seed=total, states=states)
    has_state = policy.start() is not None and any(policy.schedule(total) is None for total in totals)
    assert not has_state or len(states) > 1, (
        f"{name}.after must return the next state: after every step it is what start returns, so nothing is carried "
        "from one step to the next; a policy without a state leaves out start and after"
    )


def _check_frozen(policy: Policy) -> None:
    for field in fields(policy):  # type: ignore[arg-type]  # a dataclass, as was asserted
        try:
            setattr(policy, field.name, getattr(policy, field.name))
        except FrozenInstanceError:
            continue
        raise AssertionError(f"{type(policy).__name__} must be frozen: {field.name} could be assigned")


def _run(policy: Policy, total: int, *, seed: int, states: set[str] | None = None) -> list[bool]:
    """The answers over a run, with figures drawn from all kinds; what was done overrules every third answer. `states`
    takes every state that a step may lead to."""
    name, draw = type(policy).__name__, random.Random(seed)
    noises = tuple(1 - step / total for step in range(total))
    state, answers = policy.start(), []
    for step in range(total):
        view = StepView(
            index=step,
            total=total,
            sigma=noises[step],
            drift=draw.choice(FIGURES) if step and policy.needs_drift else None,
            error=draw.choice(FIGURES) if step and policy.needs_error else None,
            noise=noises[step],
            noises=noises,
            coordinate=noises[step],
            order=1,
        )
        before, was = copy.deepcopy(state), repr(policy)
        wanted = policy.wants_reuse(state, view)
        assert isinstance(wanted, bool), f"{name}.wants_reuse must return a bool, got {wanted!r}"
        assert policy.wants_reuse(state, view) == wanted, f"{name}.wants_reuse must be pure: asked twice it differs"
        assert repr(state) == repr(before), f"{name}.wants_reuse must not change the state"
        assert repr(policy) == was, f"{name}.wants_reuse must not change the policy"
        answers.append(wanted)
        reused = wanted and step % 3 != 2 and 0 < step < total - 1
        if states is not None:
            states |= {repr(policy.after(state, view, done)) for done in (True, False)}
        after = policy.after(state, view, reused)
        assert repr(state) == repr(before), f"{name}.after must return the next state and leave the old one"
        state = after
    return answers


def _check_schedule(policy: Policy, total: int) -> None:
    name = type(policy).__name__
    schedule = policy.schedule(total)
    if schedule is None:
        return
    steps = set(range(total))
    assert schedule <= steps, f"{name}.schedule({total}) names steps that the run does not have"
    measures = policy.needs_drift or policy.needs_error
    assert not measures, f"{name} measures, so it cannot know a schedule ahead"
    views = (StepView(index=step, total=total) for step in range(total))
    try:
        computed = {view.index for view in views if not policy.wants_reuse(policy.start(), view)}
    except StateError:
        return
    ends = {0, total - 1}
    assert computed - ends == schedule - ends, (
        f"{name}.schedule({total}) must be the steps that wants_reuse computes: {sorted(schedule)}, {sorted(computed)}"
    )
