"""What else is at work on a denoiser is said: a cache of diffusers, or a pipeline that shares it."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig, FluxImg2ImgPipeline

import omnireuse
from omnireuse.hooks.session import session_of
from omnireuse.loop.events import RequestBegan
from omnireuse.references import ReferenceAxis, References
from omnireuse.summary.summary import Promise
from tests.helpers.tiny import Tiny

PROMISE = Promise(tenth=41.0, expected=47.0, prompts=8, coordinates=(1.0,) * 6)


@pytest.fixture(autouse=True)
def listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "omnireuse")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "omnireuse"]


def with_cache(tiny: Tiny) -> None:
    tiny.pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))


@pytest.mark.parametrize("is_before", [True, False])
def test_a_cache_of_diffusers_is_said_once_and_ends_promises(
    flux: Tiny, caplog: pytest.LogCaptureFixture, is_before: bool
) -> None:
    if is_before:
        with_cache(flux)
    strategy = omnireuse.Strategy(policy=omnireuse.EveryNth(every=2))
    with omnireuse.Handle(flux.pipe, strategy, name="planned", promise=PROMISE) as handle:
        if not is_before:
            assert not said(caplog)
            with_cache(flux)
        flux.run()
        flux.run()
    (message,) = (each for each in said(caplog) if "cache" in each)
    assert "a cache of diffusers (FirstBlockCacheConfig) is at work on FluxTransformer2DModel, too" in message
    assert "disable_cache()" in message
    summary = handle.summary()
    assert not summary.promise_holds
    assert "not promised: a cache of diffusers" in str(summary)


def test_a_profile_promises_nothing_with_lean_calls(flux: Tiny) -> None:
    strategy, axis = omnireuse.Strategy(policy=omnireuse.EveryNth(every=2)), ReferenceAxis(References())
    with omnireuse.Handle(flux.pipe, strategy, name="planned", promise=PROMISE, references=axis) as handle:
        session_of(flux.pipe).emit(RequestBegan())
        assert "not promised: lean calls keep keys of references" in str(handle.summary().promise)


def test_a_pipeline_that_shares_a_denoiser_is_told_that_it_reuses_nothing(
    flux: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def call(pipe: Any) -> None:
        arguments = flux.inputs(guided=False, batch=1)
        pipe(image=image, strength=1.0, num_inference_steps=6, output_type="latent", **arguments)

    with omnireuse.enable(flux.pipe, policy="fixed") as handle:
        other = FluxImg2ImgPipeline.from_pipe(flux.pipe)
        other.set_progress_bar_config(disable=True)
        call(other)
        call(other)
        (message,) = said(caplog)
        assert "FluxImg2ImgPipeline shares a denoiser with the FluxPipeline that reuse is enabled on" in message
        assert "call omnireuse.enable on it, too" in message
        assert handle.summary().runs == 0


def test_a_pipeline_with_reuse_of_its_own_is_told_nothing(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    other = FluxImg2ImgPipeline.from_pipe(flux.pipe)
    other.set_progress_bar_config(disable=True)
    with omnireuse.enable(flux.pipe, policy="fixed"), omnireuse.enable(other, policy="fixed") as handle:
        arguments = flux.inputs(guided=False, batch=1)
        other(image=image, strength=1.0, num_inference_steps=6, output_type="latent", **arguments)
        assert session_of(other) is not None
    assert handle.summary().reused_calls > 0
    assert not said(caplog)


@pytest.mark.parametrize("first", [3, 0])
def test_a_denoiser_that_is_replaced_in_mid_run_ends_reuse_for_that_run(
    flux: Tiny, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    plain = flux.pipe.transformer
    other = copy.deepcopy(plain)
    with torch.no_grad():
        other.proj_out.weight.mul_(1.1)

    def mixed(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        pipe.transformer = other if first <= step < 10 else plain
        return values

    def run() -> torch.Tensor:
        flux.pipe.transformer = plain
        return flux.run(steps=24, callback_on_step_end=mixed)

    full = run()
    with omnireuse.enable(flux.pipe, policy=omnireuse.Steps(steps=tuple(range(5)))) as handle:
        assert torch.equal(run(), full)
        assert torch.equal(run(), full)
        assert handle.summary().fallbacks == {"computing every step": 2}
    (message,) = (each for each in said(caplog) if "replaced" in each)
    assert "in mid-run" in message
