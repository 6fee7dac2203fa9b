"""Whose call it is: the pipeline's, a callback's, another pipeline's with the same denoiser, or a user's own loop's."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler, FluxImg2ImgPipeline, FluxPipeline
from diffusers.callbacks import PipelineCallback

import omnireuse
from omnireuse.diffusion.cache.teacache import TeaCacheConfig, apply_teacache_hook
from tests.helpers.tiny import TINY, Tiny

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


@pytest.mark.parametrize("form", [as_function, as_partial, Preview])
@pytest.mark.parametrize("way", sorted(WAYS))
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
    full, made = other.run(seed=5, steps=20), list[torch.Tensor]()

    def callback(_pipe: Any, index: int, _time: Any, _values: Any) -> dict[str, Any]:
        if index in (7, 8):
            made.append(other.run(seed=5, steps=20))
        return {}

    with omnireuse.enable(flux.pipe, **WAYS[way]) as handle, caplog.at_level(logging.WARNING, "omnireuse"):
        without = flux.run(steps=20)
        assert torch.equal(flux.run(steps=20, callback_on_step_end=callback), without)
        assert handle.summary().calls_outside == 80
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

    with apply_teacache_hook(flux.pipe.transformer, config) as handle:
        flux.run(steps=20)
        assert handle.summary().reused_calls > 0
        assert handle.summary().calls_outside == 0
        flux.run(steps=20, callback_on_step_end=callback)
        assert handle.summary().calls_outside == 20
    assert all(torch.equal(each, preview(flux.pipe, 50 + index)) for index, each in enumerate(seen))


def test_classes_are_as_before_when_the_last_handle_ends(flux: Tiny) -> None:
    classes = [FluxPipeline, FluxImg2ImgPipeline]
    before = [vars(cls)["__call__"] for cls in classes]
    other = TINY["flux"]()
    first, second = omnireuse.enable(flux.pipe, tune=False), omnireuse.enable(other.pipe, tune=False)
    assert all(vars(cls)["__call__"] is not each for cls, each in zip(classes, before, strict=True))
    first.disable()
    first.disable()
    assert vars(FluxImg2ImgPipeline)["__call__"] is not before[1]
    second.disable()
    assert [vars(cls)["__call__"] for cls in classes] == before


def test_a_class_that_is_made_after_enabling_names_its_caller(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, speedup=2, tune=False) as handle:

        class Later(FluxPipeline):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return super().__call__(*args, **kwargs)

        other = Later(**{**flux.pipe.components})
        other.set_progress_bar_config(disable=True)
        Tiny(other, flux.inputs).run(seed=5)
        assert (handle.summary().runs, handle.summary().calls_outside) == (0, 12)
    assert "__init_subclass__" not in vars(DiffusionPipeline)
