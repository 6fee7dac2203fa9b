"""How a denoiser is called: with pauses, with guidance inside, in another form or spelling from step to step."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    FluxImg2ImgPipeline,
    FluxPipeline,
    WanTransformer3DModel,
)
from diffusers.callbacks import PipelineCallback

import omnireuse
from omnireuse import EveryNth, Hold
from omnireuse.diffusion.cache.teacache import TeaCacheConfig, apply_teacache_hook
from omnireuse.errors import StateError
from tests.helpers.sweep import crossed
from tests.helpers.tiny import TINY, Tiny, wan

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


@pytest.mark.parametrize(("region", "off"), crossed(["call", "blocks", "tail"], [4, 5]))
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


@pytest.mark.parametrize(
    ("region", "call"), crossed(["step", "call", "blocks", "tail"], [in_both_forms, in_both_spellings])
)
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


# -- whose call it is --------------------------------------------------------------------------------------------------


WAYS: dict[str, dict[str, Any]] = {
    "default": {"speedup": 2, "tune": False},
    "call": {"policy": "fixed", "forecaster": "blend", "region": "call"},
    "blocks": {"policy": "fixed", "region": "blocks"},
    "tail": {"policy": "fixed", "region": "tail"},
}


@pytest.fixture(autouse=True)
def _no_handle_of_another_test() -> None:
    gc.collect()  # what refers to itself in a circle keeps its pipeline, and reuse on it, until then


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def preview(pipe: Any, seed: int, timestep: float = 0.0) -> torch.Tensor:
    """A call of the denoiser on other latents than the run's."""
    return pipe.transformer(
        hidden_states=noise(seed, 1, 16, 16),
        timestep=torch.full((1,), timestep),
        pooled_projections=noise(5, 1, 32),
        encoder_hidden_states=noise(6, 1, 6, 32),
        img_ids=torch.zeros(16, 3),
        txt_ids=torch.zeros(6, 3),
        return_dict=False,
    )[0]


class Preview(PipelineCallback):
    """As diffusers' own callbacks, which pipelines know by their type."""

    def __init__(self, look: Callable[[int], None]) -> None:
        super().__init__(cutoff_step_ratio=1.0, cutoff_step_index=None)
        self.look = look

    @property
    def tensor_inputs(self) -> list[str]:
        return ["latents"]

    def callback_fn(self, pipeline: Any, step_index: int, timesteps: Any, callback_kwargs: dict[str, Any]) -> Any:
        self.look(step_index)
        return callback_kwargs


def as_function(look: Callable[[int], None]) -> Any:
    def callback(_pipe: Any, index: int, _time: Any, _values: Any) -> dict[str, Any]:
        look(index)
        return {}

    return callback


def as_partial(look: Callable[[int], None]) -> Any:
    return functools.partial(lambda how, *given: as_function(how)(*given), look)


@pytest.mark.parametrize(("way", "form"), crossed(sorted(WAYS), [as_function, as_partial, Preview]))
def test_a_preview_in_a_callback_is_exact_and_changes_nothing(flux: Tiny, way: str, form: Any) -> None:
    pipe, seen = flux.pipe, dict[int, torch.Tensor]()

    def look(index: int) -> None:
        if index % 2 == 0 or index in (9, 13):
            # The latest one has the timestep of the step that comes next: it is the callback's all the same.
            now = float(pipe.scheduler.timesteps[min(index + 1, 19)]) / 1000
            seen[index] = preview(pipe, 50 + index, now if index == 14 else 0.0)

    with omnireuse.enable(pipe, **WAYS[way]) as handle:
        without = flux.run(steps=20)
        before = handle.summary()
        assert torch.equal(flux.run(steps=20, callback_on_step_end=form(look)), without)
        summary = handle.summary()
    assert summary.calls_outside == len(seen)
    assert summary.reused_calls == 2 * before.reused_calls > 0
    for index, value in seen.items():
        now = float(pipe.scheduler.timesteps[min(index + 1, 19)]) / 1000
        assert torch.equal(value, preview(pipe, 50 + index, now if index == 14 else 0.0)), index


@pytest.mark.parametrize("way", sorted(WAYS))
def test_another_pipeline_in_a_callback_is_passed_on(flux: Tiny, way: str, caplog: pytest.LogCaptureFixture) -> None:
    other = TINY["flux"]()
    other.pipe.transformer = flux.pipe.transformer
    full, made = other.run(seed=5, steps=3), list[torch.Tensor]()

    def callback(_pipe: Any, index: int, _time: Any, _values: Any) -> dict[str, Any]:
        if index in (7, 8):
            made.append(other.run(seed=5, steps=3))
        return {}

    with omnireuse.enable(flux.pipe, **WAYS[way]) as handle, caplog.at_level(logging.WARNING, "omnireuse"):
        without = flux.run(steps=20)
        assert torch.equal(flux.run(steps=20, callback_on_step_end=callback), without)
        assert handle.summary().calls_outside == 12
        assert handle.summary().runs == 2
    assert all(torch.equal(each, full) for each in made)
    assert "shares a denoiser" in caplog.text


@pytest.mark.parametrize("way", sorted(WAYS))
def test_the_pipeline_may_be_called_in_its_own_callback(flux: Tiny, way: str) -> None:
    made = list[torch.Tensor]()
    own = TINY["flux"]()

    def callback(pipe: Any, index: int, _time: Any, _values: Any) -> dict[str, Any]:
        if index == 9:
            # A scheduler of its own, as the outer call goes on with the other one.
            pipe.scheduler, outer = FlowMatchEulerDiscreteScheduler(), pipe.scheduler
            try:
                made.append(flux.run(seed=5, steps=20))
            finally:
                pipe.scheduler = outer
        return {}

    own.pipe.transformer = flux.pipe.transformer
    with omnireuse.enable(own.pipe, **WAYS[way]):
        own.pipe.scheduler = FlowMatchEulerDiscreteScheduler()
        alone = own.run(seed=5, steps=20)
    with omnireuse.enable(flux.pipe, **WAYS[way]) as handle:
        without = flux.run(steps=20)
        assert torch.equal(flux.run(steps=20, callback_on_step_end=callback), without)
        assert handle.summary().calls_outside == 0
        assert handle.summary().runs == 3
    assert torch.equal(made[0], alone)


def test_a_hook_on_a_bare_denoiser_serves_the_pipeline_that_calls_it(flux: Tiny) -> None:
    config = TeaCacheConfig(0.5, (0, 0, 0, 1, 0), "FluxTransformer2DModel")
    seen = list[torch.Tensor]()

    def callback(pipe: Any, index: int, _time: Any, _values: Any) -> dict[str, Any]:
        seen.append(preview(pipe, 50 + index))
        return {}

    full = flux.run(steps=20)
    with apply_teacache_hook(flux.pipe.transformer, config) as handle:
        handle.expect(20)
        flux.run(steps=20)
        assert handle.summary().reused_calls > 0
        assert handle.summary().runs == 1
        # What is not announced is computed, a callback's calls, too.
        assert torch.equal(flux.run(steps=20, callback_on_step_end=callback), full)
        assert handle.summary().calls_outside == 20 + len(seen) > 20
        assert handle.summary().runs == 1
    assert all(torch.equal(each, preview(flux.pipe, 50 + index)) for index, each in enumerate(seen))


def test_no_class_but_that_of_the_pipeline_is_touched(flux: Tiny) -> None:
    classes = FluxPipeline, FluxImg2ImgPipeline, DiffusionPipeline
    before = [dict(vars(cls)) for cls in classes]
    other = TINY["flux"]()
    first, second = omnireuse.enable(flux.pipe, tune=False), omnireuse.enable(other.pipe, tune=False)
    assert vars(FluxPipeline)["__call__"] is not before[0]["__call__"]
    assert [dict(vars(cls)) for cls in classes[1:]] == before[1:]
    first.disable()
    first.disable()
    assert vars(FluxPipeline)["__call__"] is not before[0]["__call__"]
    second.disable()
    assert [dict(vars(cls)) for cls in classes] == before


@pytest.mark.parametrize("is_early", [True, False])
def test_the_calls_of_a_pipeline_of_ones_own_class_are_its_own(flux: Tiny, is_early: bool) -> None:
    def other() -> Tiny:
        class Own(FluxPipeline):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return super().__call__(*args, **kwargs)

        own = Own(**flux.pipe.components)
        own.set_progress_bar_config(disable=True)
        return Tiny(own, flux.inputs)

    early = other() if is_early else None
    with omnireuse.enable(flux.pipe, speedup=2, tune=False) as handle:
        full = (early or other()).run(seed=5)
        assert (handle.summary().runs, handle.summary().calls_outside) == (0, 12)
    assert torch.equal(flux.run(seed=5), full)
