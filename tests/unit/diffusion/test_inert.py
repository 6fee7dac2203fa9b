"""A run that has reused nothing says why, once for each reason, and what to change."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig, FluxImg2ImgPipeline

import omnireuse
from omnireuse import (
    EasyCache,
    ErrorControl,
    EveryNth,
    MagCache,
    ResidualDiff,
    SeaCache,
    Spread,
    Steps,
    TeaCache,
)
from omnireuse.errors import ConfigError, StateError
from omnireuse.hooks.extension import Extension
from omnireuse.hooks.session import session_of
from omnireuse.loop.events import RequestBegan
from omnireuse.references import ReferenceAxis, References
from omnireuse.summary.summary import Promise
from tests.helpers.tiny import Tiny

ABOVE = {
    "rel_l1_thresh": {"policy": TeaCache(rel_l1_thresh=1e-9), "region": "blocks"},
    "threshold": {"policy": EasyCache(threshold=1e-9, warmup=2)},
    "threshold ": {"policy": SeaCache(threshold=1e-9)},
    "threshold  ": {"policy": MagCache(ratios=(1.0, *[1.5] * 5), threshold=1e-9), "region": "blocks"},
    "residual_diff_threshold": {"policy": ResidualDiff(residual_diff_threshold=1e-9), "region": "tail"},
    "residual_diff_threshold ": {
        "policy": ResidualDiff(residual_diff_threshold=1e-9, mask=[1, 0, 0, 0, 0, 1]),
        "region": "tail",
    },
    "tolerance": {"policy": ErrorControl(tolerance=1e-9), "forecaster": "polynomial"},
}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "omnireuse"]


@pytest.fixture(autouse=True)
def listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "omnireuse")


@pytest.mark.parametrize("named", sorted(ABOVE))
def test_measured_above_the_threshold_at_every_step(flux: Tiny, caplog: pytest.LogCaptureFixture, named: str) -> None:
    with omnireuse.enable(flux.pipe, **ABOVE[named]) as handle:
        flux.run()
        flux.run()
    assert handle.summary().reused_calls == 0
    measured = [event.measured for event in handle.events if event.measured is not None and event.reason == "policy"]
    (message,) = said(caplog)
    assert f"every step measured above {named.strip()}=1e-09; the smallest value was {min(measured):.3g}" in message
    assert f"give a {named.strip()} above that" in message


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (
            {"policy": ResidualDiff(max_warmup_steps=5), "region": "tail"},
            "max_warmup_steps makes the first 5 of 6 steps",
        ),
        ({"policy": EveryNth(every=2, warmup=6)}, "warmup makes the first 6 of 6 steps"),
        ({"policy": EasyCache(warmup=7)}, "warmup makes the first 7 of 6 steps"),
    ],
)
def test_a_warm_up_that_covers_the_run(
    flux: Tiny, caplog: pytest.LogCaptureFixture, choice: dict[str, Any], name: str
) -> None:
    with omnireuse.enable(flux.pipe, **choice):
        flux.run()
    (message,) = said(caplog)
    assert name in message
    assert "or take more steps" in message


@pytest.mark.parametrize("choice", [{"policy": "fixed"}, {"policy": Spread(num_computed=2)}])
def test_too_few_steps(flux: Tiny, caplog: pytest.LogCaptureFixture, choice: dict[str, Any]) -> None:
    with omnireuse.enable(flux.pipe, **choice):
        flux.run(steps=2)
        flux.run(steps=1)
    (message,) = said(caplog)
    assert "a run of 2 steps leaves none out" in message
    assert "take fewer steps instead" in message


def test_each_reason_is_said_once_for_a_handle(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    choice: dict[str, Any] = {"policy": ResidualDiff(residual_diff_threshold=1e-9), "region": "tail"}
    for _ in range(2):
        with omnireuse.enable(flux.pipe, **choice):
            for steps in (6, 3, 8, 3):
                flux.run(steps=steps)
    first, second, *others = said(caplog)
    assert "above residual_diff_threshold" in first
    assert "max_warmup_steps" in second
    assert others == [first, second]


@pytest.mark.parametrize(
    ("choice", "steps"),
    [
        ({"policy": "never"}, 6),
        ({"policy": Spread(speedup=1.0)}, 6),
        ({"policy": EveryNth(every=1)}, 6),
        ({"policy": Steps(steps=range(6))}, 6),
        ({"policy": "fixed"}, 6),
    ],
)
def test_what_computes_as_asked_or_reuses_is_silent(
    flux: Tiny, caplog: pytest.LogCaptureFixture, choice: dict[str, Any], steps: int
) -> None:
    with omnireuse.enable(flux.pipe, **choice):
        flux.run(steps=steps)
    assert said(caplog) == []


def test_a_run_that_is_broken_off_is_silent(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_pipe: Any, index: int, *_: Any) -> dict[str, Any]:
        if index == 0:
            raise KeyboardInterrupt
        return {}

    with omnireuse.enable(flux.pipe, policy="fixed"), pytest.raises(KeyboardInterrupt):
        flux.run(callback_on_step_end=fail)
    assert said(caplog) == []


def test_a_pipeline_that_never_calls_its_denoiser(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    class Idle:
        transformer, scheduler = flux.pipe.transformer, flux.pipe.scheduler

        def __call__(self) -> None:
            return

    pipe = Idle()
    with omnireuse.enable(pipe):
        pipe()
        pipe()
    (message,) = said(caplog)
    assert "nothing was reused: Idle finished without a call of the denoiser" in message
    caplog.clear()
    with omnireuse.enable(pipe, policy="never"):
        pipe()
    assert said(caplog) == []


def test_a_policy_that_reuses_nearly_all_gets_a_word(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with omnireuse.enable(flux.pipe, policy=EasyCache(threshold=1e9, warmup=1)):
        flux.run(steps=28)
        flux.run(steps=28)
    (message,) = said(caplog)
    assert message.startswith("nearly all was reused: EasyCache computed 3 of 28 steps; pictures of so few steps")
    caplog.clear()
    with omnireuse.enable(flux.pipe, policy=Spread(num_computed=2)):
        flux.run(steps=28)
    assert not said(caplog), "that was asked for"


# -- forecasts that cannot be used -------------------------------------------------------------------------------------


class _Memory(omnireuse.Memory):
    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.value: torch.Tensor | None = None

    @property
    def primed(self) -> bool:
        return self.value is not None

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        self.value = value

    def predict(self, coordinate: float) -> torch.Tensor:
        assert self.value is not None
        return self.value * torch.nan if self.fault == "nan" else self.value[..., :1]


@dataclass(frozen=True)
class Faulty(omnireuse.Forecaster):
    fault: str

    def start(self, branch: int = 0) -> _Memory:
        return _Memory(self.fault)


@pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])
def test_a_forecast_of_another_shape_is_refused(flux: Tiny, region: Any) -> None:
    message = r"Faulty: a forecast must have the shape of the values that were observed, \(1, \d+, \d+\), got"
    omnireuse.enable(flux.pipe, policy="fixed", forecaster=Faulty("shape"), region=region)
    with pytest.raises(ConfigError, match=message):
        flux.run()


@pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])
def test_a_run_with_a_forecast_that_is_not_finite_ends_in_an_error(flux: Tiny, region: Any) -> None:
    handle = omnireuse.enable(flux.pipe, policy="fixed", forecaster=Faulty("nan"), region=region)
    with pytest.raises(StateError, match="NaN or infinite from step 1 on, which Faulty forecast"):
        flux.run()
    summary = handle.summary()
    assert (summary.runs, summary.broken, summary.computed_steps) == (1, 1, 0.0)
    assert "1 run ended in latents that are NaN or infinite" in str(summary)
    assert "steps computed (" not in str(summary)


def test_a_model_that_gives_nan_by_itself_is_a_warning(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "omnireuse")
    with torch.no_grad():
        flux.pipe.transformer.proj_out.bias.fill_(torch.nan)
    plain = flux.run()
    with omnireuse.enable(flux.pipe, policy="fixed") as handle:
        assert torch.equal(flux.run().isnan(), plain.isnan())
    assert handle.summary().broken == 1
    assert "NaN or infinite from step 0 on, which was computed and not forecast" in caplog.text


# -- what else is at work ----------------------------------------------------------------------------------------------


PROMISE = Promise(tenth=41.0, expected=47.0, prompts=8, coordinates=(1.0,) * 6)


class Promised(Extension):
    def summarize(self, fields: dict[str, Any]) -> None:
        fields["promise"] = PROMISE


def with_cache(tiny: Tiny) -> None:
    tiny.pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))


@pytest.mark.parametrize("is_before", [True, False])
def test_a_cache_of_diffusers_is_said_once_and_ends_promises(
    flux: Tiny, caplog: pytest.LogCaptureFixture, is_before: bool
) -> None:
    if is_before:
        with_cache(flux)
    strategy = omnireuse.Strategy(policy=omnireuse.EveryNth(every=2))
    with omnireuse.Handle(flux.pipe, (strategy, "planned", (Promised(),))) as handle:
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
    with omnireuse.Handle(flux.pipe, (strategy, "planned", (Promised(), axis))) as handle:
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
