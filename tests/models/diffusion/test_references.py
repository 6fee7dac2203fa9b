"""Full and lean calls of every declared editing model, on tiny pipelines."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import EveryNth
from omnireuse.references import References
from tests.helpers.editing import EDITING
from tests.helpers.sweep import sweep

GUIDED = {"flux_2": 1}
"""Denoiser calls of a step; two for the others."""


def attention_of(pipe: Any) -> Any:
    """The function that the attentions of its denoiser call."""
    return sys.modules[type(pipe.transformer).__module__].dispatch_attention_fn


@pytest.mark.parametrize("name", EDITING)
def test_a_lean_call_at_the_inputs_of_the_full_call_gives_its_output(name: str) -> None:
    pipe = (tiny := EDITING[name]()).pipe
    calls: list[dict[str, Any]] = []
    hook = pipe.transformer.register_forward_pre_hook(
        lambda _module, _args, given: calls.append(given), with_kwargs=True
    )
    tiny.run(steps=2)
    hook.remove()
    with torch.no_grad():
        whole = pipe.transformer(**calls[0])[0]
        with omnireuse.enable(pipe, policy=EveryNth(every=1), region="call", references=References()) as handle:
            pipe.scheduler.set_timesteps(4, mu=1.0)
            full = pipe.transformer(**calls[0])[0]
            handle.advance()
            lean = pipe.transformer(**calls[0])[0]
            assert str(handle.summary().references).startswith("references: 1 full call and 1 lean")
    assert full.shape[1] < whole.shape[1], "the target's tokens alone"
    assert torch.equal(full, whole[:, : full.shape[1]])
    torch.testing.assert_close(lean, full, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EDITING)
@pytest.mark.parametrize("region", sweep(["step", "call"], quick=["step"]))
def test_full_calls_and_a_disabled_pipeline_give_equal_bits(name: str, region: Any) -> None:
    tiny = EDITING[name]()
    attention, expected = attention_of(tiny.pipe), tiny.run(steps=3)
    plan = References(full_every=1)
    with omnireuse.enable(tiny.pipe, policy=EveryNth(every=1), region=region, references=plan) as handle:
        assert torch.equal(tiny.run(steps=3), expected)
        calls = handle.summary().references
    assert calls is not None
    assert (calls.full, calls.lean) == (3 * GUIDED.get(name, 2), 0)
    assert attention_of(tiny.pipe) is attention
    assert torch.equal(tiny.run(steps=3), expected)


@pytest.mark.parametrize("name", EDITING)
def test_the_first_computed_call_of_each_branch_is_full_every_fourth_and_the_last(name: str) -> None:
    tiny = EDITING[name]()
    expected = tiny.run(steps=6)
    with omnireuse.enable(tiny.pipe, policy=EveryNth(every=1), references=True) as handle:
        latents = tiny.run(steps=6)
        calls = handle.summary().references
    assert calls is not None
    assert (calls.full, calls.lean) == (3 * GUIDED.get(name, 2), 3 * GUIDED.get(name, 2)), "steps 0, 4 and 5"
    assert latents.shape == expected.shape
    assert not torch.equal(latents, expected)
    assert torch.equal(tiny.run(steps=6), expected)
