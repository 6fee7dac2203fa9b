"""Runs start, advance and end by themselves, whatever happens to them."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from typing import Any

import pytest
import torch
from diffusers import (
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
)

import omnireuse
from omnireuse import EveryNth, Spread
from tests.helpers.tiny import TINY, Tiny

STRATEGIES = {
    "step": {"policy": "fixed", "forecaster": "blend", "region": "step"},
    "call": {"policy": "fixed", "forecaster": "polynomial", "region": "call"},
    "blocks": {"policy": "fixed", "region": "blocks"},
    "tail": {"policy": "fixed", "region": "tail"},
}


def fresh(strategy: dict[str, Any], **call: Any) -> torch.Tensor:
    """What a pipeline gives that has never run before."""
    tiny = TINY["flux"]()
    with omnireuse.enable(tiny.pipe, **strategy):
        return tiny.run(**call)


def is_intercepted(module: torch.nn.Module) -> bool:
    """Whether anything stands before the module's calls."""
    return "_compiled_call_impl" in vars(module)


@pytest.fixture(params=sorted(STRATEGIES))
def strategy(request: pytest.FixtureRequest) -> dict[str, Any]:
    return STRATEGIES[request.param]


CALLS = [
    {"steps": 6},
    {"steps": 9},
    {"height": 16, "width": 8},
    {"batch": 3},
    {"guided": False},
    {"steps": None, "sigmas": [1.0, 0.8, 0.5, 0.2]},
    {"steps": 1},
    {"steps": 2},
]


def test_no_call_leaves_anything_to_the_next(strategy: dict[str, Any], flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, **strategy):
        for call in (*CALLS, *reversed(CALLS)):
            assert torch.equal(flux.run(**call), fresh(strategy, **call)), call


class Broken(RuntimeError):
    pass


def test_two_pipelines_may_share_a_transformer(strategy: dict[str, Any], flux: Tiny) -> None:
    other = TINY["flux"]()
    other.pipe.transformer = flux.pipe.transformer
    full = other.run(seed=5)
    expected = fresh(strategy)
    with omnireuse.enable(flux.pipe, **strategy) as handle:
        # The other one is not enabled, and its calls pass through ours.
        assert torch.equal(other.run(seed=5), full)
        assert handle.summary().calls == 0
        assert handle.summary().calls_outside == 12
        with omnireuse.enable(other.pipe, **strategy):
            assert torch.equal(flux.run(), expected)
            assert not torch.equal(other.run(seed=5), full)
        assert torch.equal(other.run(seed=5), full)
        assert torch.equal(flux.run(), expected)
    assert torch.equal(other.run(seed=5), full)


def test_handles_on_a_shared_transformer_may_end_in_any_order(flux: Tiny) -> None:
    other = TINY["flux"]()
    other.pipe.transformer = flux.pipe.transformer
    full = flux.run()
    first = omnireuse.enable(flux.pipe, **STRATEGIES["blocks"])
    second = omnireuse.enable(other.pipe, **STRATEGIES["call"])
    first.disable()
    assert torch.equal(flux.run(), full)
    assert not torch.equal(other.run(), full)
    second.disable()
    assert torch.equal(other.run(), full)
    assert not any(is_intercepted(module) for module in flux.pipe.transformer.modules())


def test_a_scheduler_exchanged_after_enabling_is_served(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, speedup=2) as handle:
        flux.run()
        flux.pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=2.0)
        shifted = flux.run()
        assert handle.summary().runs == 2
    tiny = TINY["flux"]()
    tiny.pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=2.0)
    with omnireuse.enable(tiny.pipe, speedup=2):
        assert torch.equal(tiny.run(), shifted)


def test_a_scheduler_that_a_callback_exchanges_goes_on_with_the_run(flux: Tiny) -> None:
    def exchange(pipe: Any, index: int, _timestep: Any, _given: dict[str, Any]) -> dict[str, Any]:
        pipe.scheduler = copy.deepcopy(pipe.scheduler)
        return {}

    with omnireuse.enable(flux.pipe, policy=EveryNth(every=2), forecaster="blend") as handle:
        expected = flux.run(steps=6)
        assert torch.equal(flux.run(steps=6, callback_on_step_end=exchange), expected)
    assert [event.reused for event in handle.events[6:]] == [event.reused for event in handle.events[:6]]


def test_a_transformer_exchanged_after_enabling_is_served_and_the_old_one_released(flux: Tiny) -> None:
    old = flux.pipe.transformer
    with omnireuse.enable(flux.pipe, **STRATEGIES["blocks"]) as handle:
        flux.run()
        flux.pipe.transformer = copy.deepcopy(old)
        flux.run()
        assert handle.summary().runs == 2
        assert not any(is_intercepted(module) for module in old.modules())
        assert is_intercepted(flux.pipe.transformer)


def test_a_scheduler_that_is_asked_again_without_a_denoiser_call_is_at_the_same_step(flux: Tiny) -> None:
    def ask_again(pipe: Any, index: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        pipe.scheduler._step_index -= 1
        again = pipe.scheduler.step(0.1 * given["latents"], timestep, given["latents"], return_dict=False)[0]
        return {"latents": again}

    full = flux.run(steps=6, callback_on_step_end=ask_again)
    with omnireuse.enable(flux.pipe, policy="never") as handle:
        assert torch.equal(flux.run(steps=6, callback_on_step_end=ask_again), full)
    assert [event.step for event in handle.events] == list(range(6))
    with omnireuse.enable(flux.pipe, policy=EveryNth(every=2), forecaster="blend") as handle:
        flux.run(steps=6, callback_on_step_end=ask_again)
    assert [event.reused for event in handle.events] == [False, True, False, True, False, False]


@pytest.mark.parametrize("make", [EulerDiscreteScheduler, HeunDiscreteScheduler])
@pytest.mark.parametrize("region", ["step", "call"])
def test_schedulers_that_scale_their_input_are_served(make: Any, region: str) -> None:
    tiny = TINY["stable_diffusion"]()
    tiny.pipe.scheduler = make(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    full = tiny.run(steps=8)
    policy = Spread(speedup=2.0)
    with omnireuse.enable(
        tiny.pipe, policy=policy, forecaster="blend", region=region, prediction_target="x0"
    ) as handle:
        reused = tiny.run(steps=8)
    assert handle.summary().reused_calls > 0
    assert (reused - full).norm() < 0.5 * full.norm()


def test_no_tensor_outlives_its_run(strategy: dict[str, Any], flux: Tiny) -> None:
    kept: list[Any] = []

    def note(_pipe: Any, _index: int, _t: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        kept.append(weakref.ref(tensors["latents"]))
        return {}

    with omnireuse.enable(flux.pipe, **strategy) as handle:
        hook = flux.pipe.transformer.register_forward_hook(lambda _m, _a, out: kept.append(weakref.ref(out[0])))
        result = flux.run(callback_on_step_end=note)
        hook.remove()
        del result
        gc.collect()
        assert [ref for ref in kept if ref() is not None] == []
        assert handle.summary().kept_bytes > 0


def test_no_tensor_outlives_a_run_that_fails(strategy: dict[str, Any], flux: Tiny) -> None:
    kept: list[Any] = []

    def note_and_fail(_module: Any, _inputs: Any, output: Any) -> None:
        kept.append(weakref.ref(output[0]))
        if len(kept) == 3:
            raise Broken

    with omnireuse.enable(flux.pipe, **strategy):
        hook = flux.pipe.transformer.register_forward_hook(note_and_fail)
        with pytest.raises(Broken):
            flux.run()
        hook.remove()
        gc.collect()
        assert [ref for ref in kept if ref() is not None] == []
        assert torch.equal(flux.run(), fresh(strategy)), "nor does anything else"


def test_a_disabled_pipeline_is_not_kept_alive(strategy: dict[str, Any]) -> None:
    tiny = TINY["flux"]()
    handle = omnireuse.enable(tiny.pipe, **strategy)
    tiny.run()
    handle.disable()
    transformer = weakref.ref(tiny.pipe.transformer)
    pipe = weakref.ref(tiny.pipe)
    del tiny, handle
    gc.collect()
    assert transformer() is None
    assert pipe() is None


def test_a_generation_that_reuses_nothing_says_so(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(FlowMatchEulerDiscreteScheduler):
        pass

    with omnireuse.enable(flux.pipe, policy="fixed"), caplog.at_level(logging.WARNING, "omnireuse"):
        flux.run()
        assert not caplog.records
        flux.pipe.scheduler.timesteps = torch.tensor([900.0, 500.0])
        # A run whose scheduler is exchanged inside the pipeline call escapes us, and is reported.
        inner = flux.pipe.encode_prompt

        def exchange(*args: Any, **kwargs: Any) -> Any:
            flux.pipe.scheduler = Deaf()
            return inner(*args, **kwargs)

        flux.pipe.encode_prompt = exchange
        flux.run()
    assert "nothing was reused" in caplog.text
