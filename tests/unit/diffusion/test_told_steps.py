"""The step and the noise level that a pipeline gives to `cache_context` count where no scheduler's step is called."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import Blend, Polynomial, Spread, Steps
from omnireuse.diffusion.cache.magcache import MagCacheConfig, apply_mag_cache_hook
from omnireuse.diffusion.cache.teacache import TeaCacheConfig, apply_teacache_hook, register_extractor
from omnireuse.hooks.clock import timestep_of
from omnireuse.summary.prometheus import StepReuseCollector
from tests.helpers.foreign import IDENTITY, Foreign, take_apart
from tests.helpers.tiny import TINY

SIGMAS = (1.0, 0.9, 0.6, 0.5, 0.1, 0.05)


class Denoiser(torch.nn.Module):
    """Its output is the noise level, so that a line through two outputs is exact in it and in nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, sample: torch.Tensor, level: float) -> torch.Tensor:
        self.calls += 1
        return torch.full_like(sample, level)

    @contextmanager
    def cache_context(self, name: str, **where: Any) -> Iterator[None]:
        yield


def run(model: Denoiser, sigmas: Sequence[float] = SIGMAS, *, tells_sigma: bool = True, first: int = 0) -> list[float]:
    outputs = []
    for i, sigma in enumerate(sigmas):
        told = {"step_index": first + i, "num_inference_steps": len(sigmas)}
        with torch.no_grad(), model.cache_context("cond", **told, **({"sigma": sigma} if tells_sigma else {})):
            outputs.append(float(model(torch.ones(1, 2), sigma)[0, 0]))
    return outputs


@pytest.mark.parametrize(
    ("sigmas", "share"), [(SIGMAS, lambda s: s), ((10.0, 8.0, 4.0, 1.0, 0.5, 0.2), lambda s: s / (1 + s))]
)
def test_forecasts_are_spaced_by_the_noise_that_is_told(sigmas: Sequence[float], share: Any) -> None:
    model = Denoiser()
    policy = Steps(steps=(0, 1))
    with omnireuse.enable(
        SimpleNamespace(transformer=model), policy=policy, forecaster=Polynomial(order=1), region="call"
    ) as handle:
        outputs = run(model, sigmas)
    at = [share(sigma) for sigma in sigmas]
    for step in range(2, 5):
        slope = (sigmas[1] - sigmas[0]) / (at[1] - at[0])
        assert outputs[step] == pytest.approx(sigmas[1] + slope * (at[step] - at[1]), rel=1e-5)
    assert outputs[5] == pytest.approx(sigmas[5])
    assert model.calls == 3
    assert [event.sigma for event in handle.events] == list(sigmas)


def test_a_step_that_begins_again_begins_a_run() -> None:
    model = Denoiser()
    with omnireuse.enable(SimpleNamespace(transformer=model), policy=Spread(num_computed=3), region="call") as handle:
        first = run(model, tells_sigma=False)
        assert run(model, tells_sigma=False) == first
        assert run(model, first=2) == first  # counted from wherever the pipeline begins
    assert (handle.summary().runs, handle.summary().steps, model.calls) == (3, 18, 9)
    assert {event.total for event in handle.events} == {6}


def test_several_calls_of_a_step_are_one_step() -> None:
    model = Denoiser()
    with omnireuse.enable(SimpleNamespace(transformer=model), policy=Spread(num_computed=3), region="call") as handle:
        for i, sigma in enumerate(SIGMAS):
            for name in ("cond", "uncond"):
                with torch.no_grad(), model.cache_context(name, step_index=i, num_inference_steps=6):
                    model(torch.ones(1, 2), sigma)
    assert (handle.summary().steps, handle.summary().calls, handle.summary().computed_steps) == (6, 12, 3)


@pytest.mark.parametrize("ends", ["told", "advance", "both", "step"])
def test_whoever_ends_the_steps_of_a_scheduler_the_pictures_are_the_same(ends: str) -> None:
    def sample(handle: Any) -> torch.Tensor:
        scheduler.set_timesteps(6)
        latents = torch.ones(1, 2)
        for i, t in enumerate(scheduler.timesteps):
            told = {"step_index": i} if ends in ("told", "both") else {}
            with torch.no_grad(), model.cache_context("cond", **told):
                output = model(latents, float(t) / 1000)
            if ends == "step":
                latents = scheduler.step(output, t, latents, return_dict=False)[0]
            else:
                latents = latents + (scheduler.sigmas[i + 1] - scheduler.sigmas[i]) * output
                if ends in ("advance", "both"):
                    handle.advance(latents)
        return latents

    model, scheduler = Denoiser(), FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipe = SimpleNamespace(transformer=model, scheduler=scheduler)
    policy, forecaster = Spread(num_computed=3), Blend()
    with omnireuse.enable(pipe, policy=policy, forecaster=forecaster, region="call") as handle:
        found = sample(handle)
        assert torch.equal(sample(handle), found)
    assert model.calls == 6
    with omnireuse.enable(pipe, policy=policy, forecaster=forecaster, region="call") as handle:
        ends = "advance"
        torch.testing.assert_close(sample(handle), found)


class Pair(torch.nn.Module):
    """Two outputs: the second is one more kind of latents, or what it was handed."""

    def __init__(self, *, hands_through: bool) -> None:
        super().__init__()
        self.hands_through, self.calls = hands_through, 0

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, cache: dict[int, torch.Tensor]) -> Any:
        self.calls += 1
        return sample.tanh(), cache if self.hands_through else {0: cache[0] * 0.5}


def pair(hands_through: bool) -> tuple[Any, Any]:
    model, scheduler = Pair(hands_through=hands_through), FlowMatchEulerDiscreteScheduler()

    def sample() -> torch.Tensor:
        scheduler.set_timesteps(24)
        latents, cache = torch.linspace(-1, 1, 4)[None], {0: torch.ones(1, 3)}
        for t in scheduler.timesteps:
            with torch.no_grad():
                output, cache = model(latents, t, cache)
            latents = scheduler.step(output, t, latents, return_dict=False)[0]
        return latents

    return SimpleNamespace(transformer=model, scheduler=scheduler), sample


def test_a_cache_that_is_handed_through_is_no_output() -> None:
    pipe, sample = pair(hands_through=True)
    with omnireuse.enable(pipe) as handle:
        sample()
    assert (handle.strategy.region, pipe.transformer.calls) == ("step", 12)


def test_metrics_count_the_fallback_to_calls() -> None:
    pytest.importorskip("prometheus_client")
    pipe, sample = pair(hands_through=False)
    with omnireuse.enable(pipe, speedup=1) as handle:
        sample()
    counted = StepReuseCollector().samples(handle)
    assert ("omnireuse_step_reuse_fallbacks_total", ("1x fewer steps", "region call"), 1) in counted


def test_the_default_forecasts_calls_where_a_denoiser_has_several_outputs(caplog: pytest.LogCaptureFixture) -> None:
    pipe, sample = pair(hands_through=False)
    full = sample()
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(pipe, speedup=1) as handle:
        assert torch.equal(sample(), full)
        assert torch.equal(sample(), full)
    assert handle.strategy.region == "call"
    assert caplog.text.count("switching to region 'call' for this pipeline") == 1
    assert (handle.summary().steps, handle.summary().fallbacks) == (48, {"region call": 1})
    assert "fell back to region call 1 time" in str(handle.summary())
    with (
        omnireuse.enable(pipe, speedup=2, region="step"),
        pytest.raises(omnireuse.errors.UnsupportedModelError, match="use region='call'"),
    ):
        sample()
    assert torch.equal(sample(), full)


# -- timesteps ---------------------------------------------------------------------------------------------------------


STEPS = 8
TEXT = torch.ones(1, 3, 8)


class Timestep(Foreign):
    pass


class Timesteps(Foreign):
    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return Foreign.forward(self, x, timesteps, text)


class T(Foreign):
    def forward(self, x: torch.Tensor, text: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return Foreign.forward(self, x, t, text)


class Sigma(Foreign):
    def forward(self, x: torch.Tensor, /, sigma: torch.Tensor, *, text: torch.Tensor) -> torch.Tensor:
        return Foreign.forward(self, x, sigma, text)


class NoiseLevel(Foreign):
    def forward(self, text: torch.Tensor, noise_level: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return Foreign.forward(self, x, noise_level, text)


class Collected(Foreign):
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return Foreign.forward(self, args[0], kwargs["t"], kwargs["text"])


CALLS: dict[str, tuple[type[Foreign], Callable[[Any, Any, Any], Any]]] = {
    "timestep by position": (Timestep, lambda m, x, t: m(x, t, TEXT)),
    "timestep by name": (Timestep, lambda m, x, t: m(x, text=TEXT, timestep=t)),
    "timesteps by position": (Timesteps, lambda m, x, t: m(x, t, text=TEXT)),
    "timesteps by name": (Timesteps, lambda m, x, t: m(x=x, timesteps=t, text=TEXT)),
    "t by position": (T, lambda m, x, t: m(x, TEXT, t)),
    "t by name": (T, lambda m, x, t: m(x, t=t, text=TEXT)),
    "sigma by position": (Sigma, lambda m, x, t: m(x, t, text=TEXT)),
    "sigma by name": (Sigma, lambda m, x, t: m(x, sigma=t, text=TEXT)),
    "noise_level by position": (NoiseLevel, lambda m, x, t: m(TEXT, t, x)),
    "noise_level by name": (NoiseLevel, lambda m, x, t: m(x=x, noise_level=t, text=TEXT)),
    "collected": (Collected, lambda m, x, t: m(x, t=t, text=TEXT)),
}


def made(kind: type[Foreign]) -> Foreign:
    """A model of this class, whose extractor takes its arguments as its forward does."""

    def extract(module: Foreign, *args: Any, **kwargs: Any) -> Any:
        told = inspect.signature(kind.forward).bind(module, *args, **kwargs).arguments
        positional, named = told.pop("args", [None]), told.pop("kwargs", {})
        told = {"x": positional[0], **told, **named}
        (when,) = [value for name, value in told.items() if name not in ("self", "x", "hidden_states", "text")]
        return take_apart(module, told.get("hidden_states", told["x"]), when, told["text"])

    register_extractor(kind.__name__, extract)
    return kind()


@torch.no_grad()
def sample(module: Any, call: Callable[[Any, Any, Any], Any], times: Sequence[Any] | torch.Tensor) -> torch.Tensor:
    latents = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0))
    for t in times:
        latents = latents - call(module, latents, t) / len(times)
    return latents


DOWN = torch.linspace(1, 0.1, STEPS)[:, None]


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_timestep_is_found_wherever_it_is(name: str) -> None:
    kind, call = CALLS[name]
    module = made(kind)
    full = sample(module, call, DOWN)
    with apply_teacache_hook(module, TeaCacheConfig(0.5, IDENTITY)) as handle:
        handle.expect(STEPS)
        reused = sample(module, call, DOWN)
        handle.expect(STEPS)
        assert torch.equal(sample(module, call, DOWN), reused)
    assert [(event.run, event.step, event.total) for event in handle.events] == [
        (run, step, STEPS) for run in (1, 2) for step in range(STEPS)
    ]
    assert handle.summary().reused_calls > 0
    assert handle.summary().calls_outside == 0
    assert torch.equal(sample(module, call, DOWN), full)


def test_a_declared_model_is_served_by_position() -> None:
    transformer = TINY["wan"]().pipe.transformer

    @torch.no_grad()
    def run() -> torch.Tensor:
        latents = torch.ones(1, 16, 2, 2, 2)
        for t in torch.linspace(1000, 100, STEPS):
            latents = latents - transformer(latents, t[None], torch.ones(1, 6, 32), return_dict=False)[0] / STEPS
        return latents

    full = run()
    config = MagCacheConfig(0.5, num_inference_steps=STEPS, mag_ratios=[1.0] + [0.98] * (STEPS - 1))
    with apply_mag_cache_hook(transformer, config) as handle:
        assert not torch.equal(run(), full)
    assert handle.summary().reused_calls > 0
    assert torch.equal(run(), full)


def test_a_run_that_nobody_announces_is_computed_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    kind, call = CALLS["t by name"]
    module = made(kind)
    full = sample(module, call, DOWN)
    with (
        caplog.at_level(logging.WARNING, "omnireuse"),
        apply_teacache_hook(module, TeaCacheConfig(0.5, IDENTITY)) as handle,
    ):
        for _ in range(2):
            assert torch.equal(sample(module, call, DOWN), full)
        assert handle.summary().calls_outside == 2 * STEPS
        handle.expect(STEPS)
        reused = sample(module, call, 0.5 * DOWN.flip(0))  # time may go up
        assert torch.equal(sample(module, call, DOWN), full), "the announced run is over"
    assert not torch.equal(reused, sample(module, call, 0.5 * DOWN.flip(0)))
    assert [(event.run, event.step) for event in handle.events] == [(1, step) for step in range(STEPS)]
    assert handle.summary().calls_outside == 3 * STEPS
    assert caplog.text.count("call handle.expect(num_inference_steps) before each generation") == 1


class Untold(Foreign):
    def forward(self, x: torch.Tensor, when: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return Foreign.forward(self, x, when, text)


@pytest.mark.parametrize("advances", [True, False])
def test_steps_without_a_timestep_end_by_advance(advances: bool, caplog: pytest.LogCaptureFixture) -> None:
    def call(module: Untold, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        output = module(x, t, TEXT)
        if advances:
            handle.advance()
        return output

    module = made(Untold)
    with (
        caplog.at_level(logging.WARNING, "omnireuse"),
        apply_teacache_hook(module, TeaCacheConfig(0.5, IDENTITY)) as handle,
    ):
        handle.expect(STEPS)
        result = sample(module, call, DOWN)
    assert handle.summary().computed_steps < STEPS
    assert (handle.summary().reused_calls > 0) == advances
    assert torch.equal(result, sample(module, lambda m, x, t: m(x, t, TEXT), DOWN)) == (not advances)
    assert ("no step ended after 8 calls" in caplog.text) == (not advances)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0.5),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7.0),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([0.5, 0.5]), 0.5),
        (torch.tensor([3], dtype=torch.int64), 3.0),
        (torch.tensor([[0.0, 0.0, 900.0, 900.0]]), 900.0),  # given frames have no noise
        (torch.tensor([]), None),
        ("now", None),
        (True, None),
        (None, None),
    ],
)
def test_a_timestep_is_a_number_of_any_kind(value: Any, expected: float | None) -> None:
    module = Foreign()
    assert timestep_of(module, (torch.ones(1), value), {}) == expected
    assert timestep_of(module, (torch.ones(1),), {"timestep": value}) == expected
    assert timestep_of(module, (), {"sigma": value, "hidden_states": torch.ones(1)}) == expected
