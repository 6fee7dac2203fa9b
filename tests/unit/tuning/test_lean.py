"""Lean calls are tried beside the measured pictures of an editing pipeline, and taken where their error is small."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.references import References
from omnireuse.summary.summary import ReferenceCalls
from omnireuse.tuning.tuner import Tuner
from tests.helpers.editing import EDITING
from tests.helpers.tiny import Tiny


def tuned(tiny: Tiny, steps: int, references: Any = None, **call: Any) -> omnireuse.Handle:
    """A handle that has measured three pictures, which are those of the pipeline."""
    expected = [tiny.run(steps=steps, seed=seed, **call) for seed in range(3)]
    handle = omnireuse.enable(tiny.pipe, references=references)
    tuner = handle.extension(Tuner)
    assert tuner is not None
    tuner.measure_all()
    for seed in range(3):
        assert torch.equal(tiny.run(steps=steps, seed=seed, **call), expected[seed])
    assert handle.tuning.state == "ready"
    return handle


def full_every(handle: omnireuse.Handle) -> int | None:
    """Of the plan in use."""
    profile = handle.tuned_profile
    assert profile is not None
    (plan,) = profile.plans.values()
    return plan.full_every


def test_a_short_run_takes_the_fewest_full_calls_that_leave_little_error() -> None:
    tiny = EDITING["qwen_edit"]()
    handle = tuned(tiny, 8)
    calls = handle.summary().references
    assert calls == ReferenceCalls(), "trial runs are not counted"
    every = full_every(handle)
    assert every in (0, 4, 2)
    said = r"references computed in (the first call|one of \d calls) and at the last step, [0-4]\.\d\d% error with that"
    assert re.search(said, handle.tuning.reason)
    latents = tiny.run(steps=8, seed=7)
    calls = handle.summary().references
    assert calls is not None
    assert calls.full == 2 * {0: 2, 4: 3, 2: 5}[every or 0], "the last step's, too, in each branch"
    assert calls.full + calls.lean == 16
    handle.disable()
    full = tiny.run(steps=8, seed=7)
    assert float((latents - full).abs().sum() / full.abs().sum()) < 0.1
    with omnireuse.enable(tiny.pipe) as later:
        assert torch.equal(tiny.run(steps=8, seed=7), latents), "a later handle has the same plan"
        assert full_every(later) == every
    with omnireuse.enable(tiny.pipe, references="host") as on_host:
        assert torch.equal(tiny.run(steps=8, seed=7), latents)
        assert full_every(on_host) == every


@pytest.mark.slow
def test_a_plan_that_reuses_the_last_step_is_not_said_to_compute_references_there() -> None:
    tiny = EDITING["flux_2"]()
    handle = tuned(tiny, 8)
    profile = handle.tuned_profile
    assert profile is not None
    assert 7 not in next(iter(profile.plans.values())).steps
    assert "references computed in the first call, " in handle.tuning.reason
    tiny.run(steps=8, seed=7)
    calls = handle.summary().references
    assert calls is not None
    assert (calls.full, calls.lean) == (1, 3)
    handle.disable()


@pytest.mark.slow
def test_a_plan_whose_error_would_grow_stays_without_lean_calls() -> None:
    tiny = EDITING["kontext"]()
    handle = tuned(tiny, 20, references=True)
    assert full_every(handle) == 1
    assert "references computed in every call, as no lean calls were seen" in handle.tuning.reason
    tiny.run(steps=20, seed=7)
    calls = handle.summary().references
    assert calls is not None
    assert calls.lean == 0
    assert calls.full > 0
    handle.disable()


@pytest.mark.parametrize("references", [False, References(full_every=2)])
def test_lean_calls_that_are_off_or_fixed_are_not_tried(references: Any) -> None:
    tiny = EDITING["qwen_edit"]()
    handle = tuned(tiny, 8, references=references)
    assert full_every(handle) is None
    tiny.run(steps=8, seed=7)
    calls = handle.summary().references
    assert calls is None or calls.lean > 0
    assert (calls is None) == (references is False)
    handle.disable()


def test_a_call_without_references_has_no_lean_calls() -> None:
    tiny = EDITING["kontext"]()
    handle = tuned(tiny, 8, image=None)
    assert full_every(handle) is None
    tiny.run(steps=8, seed=7, image=None)
    assert handle.summary().references == ReferenceCalls()
    handle.disable()


def test_untuned_pipelines_have_no_lean_calls() -> None:
    tiny = EDITING["qwen_edit"]()
    with omnireuse.enable(tiny.pipe, tune=False) as handle:
        tiny.run(steps=20)
        assert handle.summary().references is None


def test_nothing_is_tried_for_pipelines_without_references() -> None:
    pipe = EDITING["kontext"]().pipe
    pipe.transformer.compile(backend="eager")
    with omnireuse.enable(pipe) as handle:
        assert handle.summary().references is None
