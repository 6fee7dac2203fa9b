"""How a denoiser is called: with pauses, with guidance inside, in another form or spelling from step to step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

import omnireuse
from omnireuse import EveryNth, Hold
from omnireuse.errors import StateError
from tests.helpers.tiny import wan

STEPS = 12
EVERY_SECOND = EveryNth(every=2, warmup=3)
REGIONS = pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])


def guided_between(off: int, on: int) -> Callable[..., dict[str, Any]]:
    """A callback that ends guidance after one step and brings it back after another."""

    def change(pipe: Any, step: int, _time: Any, _kwargs: Any) -> dict[str, Any]:
        if step in (off, on):
            pipe._guidance_scale = 1.0 if step == off else 3.0
        return {}

    return change


@pytest.mark.parametrize("region", ["call", "blocks", "tail"])
@pytest.mark.parametrize("off", [4, 5])
def test_a_branch_that_was_left_out_computes_when_it_comes_back(region: str, off: int) -> None:
    tiny = wan()
    with omnireuse.enable(tiny.pipe, policy=EVERY_SECOND, region=region) as handle:
        tiny.run(steps=20, callback_on_step_end=guided_between(off, 13))
    of = {branch: [event for event in handle.events if event.branch == branch] for branch in ("cond", "uncond")}
    back = next(event for event in of["uncond"] if event.step > off)
    assert (back.step, back.reused, back.reason) == (14, False, "paused")
    assert any(event.reused for event in of["uncond"] if event.step > 14)
    assert not any(event.reason == "paused" for event in of["cond"])
    assert "came back that an earlier step had left out" in str(handle.summary())


class _GuidedInside(WanTransformer3DModel):
    """Both branches of guidance in one call, with the negative text of the pipeline."""

    def forward(self, hidden_states: Any, timestep: Any, encoder_hidden_states: Any, **more: Any) -> Any:
        texts = encoder_hidden_states, self.negative
        cond, uncond = (
            super(_GuidedInside, self).forward(hidden_states, timestep, text, return_dict=False)[0] for text in texts
        )
        return (uncond + 3.0 * (cond - uncond),)


_GuidedInside.__name__ = "WanTransformer3DModel"


@pytest.mark.parametrize("region", ["blocks", "tail"])
def test_each_way_through_the_blocks_within_a_call_has_a_history_of_its_own(region: str) -> None:
    tiny = wan()
    options = {"policy": EVERY_SECOND, "forecaster": Hold(), "region": region}
    with omnireuse.enable(tiny.pipe, **options):
        by_two_calls = tiny.run(steps=STEPS)
    tiny.pipe.transformer.__class__ = _GuidedInside
    tiny.pipe.transformer.negative = tiny.inputs(guided=True, batch=1)["negative_prompt_embeds"]
    with omnireuse.enable(tiny.pipe, **options) as handle:
        within_one = tiny.run(steps=STEPS, guided=False)
    torch.testing.assert_close(within_one, by_two_calls)
    assert {event.branch for event in handle.events} == {"cond", "cond/2"}
    assert 0 < handle.summary().reused_calls < len(handle.events) == 2 * STEPS


def test_a_stack_that_begins_again_before_its_end_is_refused() -> None:
    tiny = wan()
    first = tiny.pipe.transformer.blocks[0]
    with omnireuse.enable(tiny.pipe, policy=EVERY_SECOND, region="blocks"):
        inner = type(first).forward
        calls = []

        def twice(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                return first(*args, **kwargs)
            return inner(first, *args, **kwargs)

        first.forward = twice
        with pytest.raises(StateError, match=r"WanTransformer3DModel runs its first block again before its last"):
            tiny.run(steps=4)


class Loop:
    """A loop of one's own around a transformer; `call` makes its call at a step."""

    def __init__(self, call: Callable[[torch.nn.Module, int, Any, Any, Any], torch.Tensor]) -> None:
        self.transformer, self.scheduler, self.call = wan().pipe.transformer, FlowMatchEulerDiscreteScheduler(), call

    @torch.no_grad()
    def run(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        latents, text = (torch.randn(*shape, generator=generator) for shape in ((1, 16, 2, 2, 2), (1, 6, 32)))
        self.scheduler.set_timesteps(STEPS)
        for step, t in enumerate(self.scheduler.timesteps):
            output = self.call(self.transformer, step, latents, t.expand(1), text)
            latents = self.scheduler.step(output, t, latents)[0]
        return latents


def as_usual(model: Any, step: int, latents: Any, t: Any, text: Any) -> torch.Tensor:
    return model(hidden_states=latents, timestep=t, encoder_hidden_states=text, return_dict=False)[0]


def in_both_forms(model: Any, step: int, latents: Any, t: Any, text: Any) -> torch.Tensor:
    result = model(hidden_states=latents, timestep=t, encoder_hidden_states=text, return_dict=step % 2 == 0)
    if step % 2:
        assert isinstance(result, tuple)
        return result[0]
    return result.sample


def late_in_another_form(model: Any, step: int, latents: Any, t: Any, text: Any) -> torch.Tensor:
    if step < 5:  # a step that is reused
        return as_usual(model, step, latents, t, text)
    return model(hidden_states=latents, timestep=t, encoder_hidden_states=text).sample


def in_both_spellings(model: Any, step: int, latents: Any, t: Any, text: Any) -> torch.Tensor:
    if step % 2:
        return as_usual(model, step, latents, t, text)
    return model(latents, t, text, return_dict=False)[0]


def run(call: Any, region: str) -> tuple[torch.Tensor, list[bool]]:
    loop = Loop(call)
    with omnireuse.enable(loop, policy=EVERY_SECOND, forecaster=Hold(), region=region) as handle:
        return loop.run(), [event.reused for event in handle.events]


@REGIONS
@pytest.mark.parametrize("call", [in_both_forms, in_both_spellings])
def test_the_form_and_the_spelling_of_a_call_change_nothing(region: str, call: Any) -> None:
    usual, decisions = run(as_usual, region)
    other, others = run(call, region)
    assert others == decisions
    assert any(decisions)
    assert torch.equal(other, usual)


@REGIONS
def test_a_form_that_no_computed_step_has_shown_is_computed(region: str) -> None:
    latents, decisions = run(late_in_another_form, region)
    assert torch.isfinite(latents).all()
    assert decisions[5] == (region != "call")
    assert any(decisions[6:])


@REGIONS
def test_what_changes_at_every_step_is_named(region: str, caplog: pytest.LogCaptureFixture) -> None:
    def longer(model: Any, step: int, latents: Any, t: Any, text: Any) -> torch.Tensor:
        return as_usual(model, step, latents, t, text[:, : 5 + step % 2])

    with caplog.at_level(logging.WARNING, "omnireuse"):
        _, decisions = run(longer, region)
    assert not any(decisions)
    (line,) = [line for line in caplog.messages if "nothing was reused" in line]
    assert "encoder_hidden_states from (1, 5, 32) to (1, 6, 32)" in line
    assert "region=" not in line
