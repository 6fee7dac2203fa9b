"""`omnireuse.enable`: three ways to say how, and a clear error for everything else before any step runs."""

from __future__ import annotations

import gc
import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import Blend, Never, Polynomial, Steps, TeaCache
from omnireuse.errors import (
    ConfigError,
    OmniReuseError,
    StateError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from tests.helpers.tiny import TINY, Tiny


def test_the_default_halves_the_steps_of_any_pipeline(tiny: Tiny) -> None:
    with omnireuse.enable(tiny.pipe) as handle:
        tiny.run(steps=24)
    assert handle.summary().computed_steps == 12
    assert handle.summary().name == "default"


def test_the_default_computes_short_runs_whole_and_says_so_once(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    full = flux.run(steps=8)
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(flux.pipe):
        for _ in range(2):
            assert torch.equal(flux.run(steps=8), full)
        (told,) = caplog.messages
    assert "all 8 steps are computed" in told
    assert "take fewer steps" in told


def test_a_speedup_is_granted_on_short_runs_with_a_warning(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(flux.pipe, speedup=2) as handle:
        for _ in range(2):
            flux.run(steps=7)
        (told,) = caplog.messages
    assert handle.summary().computed_steps == 4
    assert "compare with a run of 4 steps" in told


def test_a_backend_by_name_equals_its_strategy(flux: Tiny) -> None:
    coefficients = (0.0, 0.0, 0.0, 0.3, 0.0)
    with omnireuse.enable(flux.pipe, "tea_cache", rel_l1_thresh=0.6, coefficients=coefficients) as handle:
        named = flux.run(steps=10)
    assert handle.summary().reused_calls > 0
    policy = TeaCache(rel_l1_thresh=0.6, coefficients=coefficients)
    with omnireuse.enable(flux.pipe, policy=policy, region="blocks"):
        assert torch.equal(flux.run(steps=10), named)


@pytest.mark.parametrize("region", ["step", "call", "blocks"])
@pytest.mark.parametrize("forecaster", ["hold", Polynomial(order=3), Blend(order=2)])
@pytest.mark.parametrize("policy", ["fixed", TeaCache(rel_l1_thresh=0.9, coefficients=(0, 0, 0, 0.3, 0))])
def test_any_combination_runs(flux: Tiny, region: str, forecaster: Any, policy: Any) -> None:
    for target in ("residual", "output") if region == "blocks" else ("x0", "output"):
        with omnireuse.enable(
            flux.pipe, policy=policy, forecaster=forecaster, region=region, prediction_target=target
        ) as handle:
            assert torch.isfinite(flux.run(steps=8)).all()
        assert handle.summary().reused_calls > 0


def test_leaving_the_context_disables_even_after_an_error(flux: Tiny) -> None:
    full = flux.run()
    with pytest.raises(KeyError), omnireuse.enable(flux.pipe) as handle:
        raise KeyError
    assert not handle.enabled
    assert torch.equal(flux.run(), full)


def test_enabling_twice_is_an_error_and_changes_nothing(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, speedup=2) as handle:
        first = flux.run()
        with pytest.raises(
            StateError,
            match=r"this FluxPipeline \(2x fewer steps\), so EveryNth × Hold on blocks .*disable\(pipeline\)",
        ):
            omnireuse.enable(flux.pipe, policy="fixed", region="blocks")
        assert torch.equal(flux.run(), first)
        assert handle.summary().runs == 2
    omnireuse.enable(flux.pipe).disable()


def test_who_kept_no_handle_asks_the_pipeline_for_it_and_ends_reuse_on_the_pipeline(flux: Tiny) -> None:
    full = flux.run()
    assert omnireuse.handle_of(flux.pipe) is None
    omnireuse.enable(flux.pipe)
    reused = flux.run()
    gc.collect()
    handle = omnireuse.handle_of(flux.pipe)
    assert handle is not None
    assert handle.summary().runs == 1
    assert omnireuse.handle_of(TINY["flux"]().pipe) is None
    assert torch.equal(flux.run(), reused)
    omnireuse.disable(flux.pipe)
    assert not handle.enabled
    assert omnireuse.handle_of(flux.pipe) is None
    assert torch.equal(flux.run(), full)
    omnireuse.disable(flux.pipe)
    backend = omnireuse.enable(flux.pipe, "taylorseer")
    assert omnireuse.handle_of(flux.pipe) is backend
    omnireuse.disable(flux.pipe)


@pytest.mark.parametrize(
    "wrap", [lambda model: model, lambda model: torch.compile(model, backend="eager")], ids=["plain", "compiled"]
)
def test_who_passes_the_model_is_told_to_pass_the_pipeline(flux: Tiny, wrap: Any) -> None:
    model = wrap(flux.pipe.transformer)
    for function in (omnireuse.enable, omnireuse.disable):
        with pytest.raises(UnsupportedModelError, match=r"FluxTransformer2DModel is a model.*pass the pipeline"):
            function(model)


def test_who_passes_another_part_is_told_to_pass_the_pipeline(flux: Tiny) -> None:
    with pytest.raises(UnsupportedModelError, match=r"AutoencoderKL is a model.*pass the pipeline"):
        omnireuse.enable(flux.pipe.vae)


@pytest.mark.parametrize(
    ("positional", "options", "error", "message"),
    [
        (["teacache"], {}, UnknownNameError, "unknown cache backend 'teacache'; did you mean 'tea_cache'"),
        (["tea_cache"], {"rel_l1_thresh": math.nan}, ConfigError, "rel_l1_thresh must be a finite number above 0"),
        (["tea_cache"], {"policy": "fixed"}, ConfigError, "either a backend or a policy"),
        ([], {"policy": "fixd"}, UnknownNameError, "did you mean 'fixed'"),
        ([], {"policy": "fixed", "forecaster": "hald"}, UnknownNameError, "did you mean 'hold'"),
        ([], {"policy": "fixed", "prediction_target": "x1"}, UnknownNameError, "did you mean 'x0'"),
        ([], {"policy": "fixed", "signal": "latent"}, UnknownNameError, "did you mean 'latents'"),
        (
            [],
            {"policy": "fixed", "prediction_target": "residual"},
            ConfigError,
            "prediction_target must be x0 or output in region 'step'",
        ),
        (
            [],
            {"policy": "fixed", "region": "blocks", "prediction_target": "x0"},
            ConfigError,
            "prediction_target must be residual or output",
        ),
        ([], {"policy": TeaCache(), "signal": "none"}, ConfigError, "signal must not be 'none'"),
        ([], {"policy": 7}, WrongTypeError, "policy must be a policy"),
        ([], {"policy": "fixed", "forecaster": Never()}, WrongTypeError, "forecaster must be a forecaster"),
        ([], {"forecaster": "hold"}, ConfigError, r"replace\(Strategy.default\(speedup=2\), forecaster=…\)\)$"),
        ([], {"region": "step"}, ConfigError, r"write enable\(pipeline, speedup=2, region='step'\)$"),
    ],
)
def test_bad_choices_are_refused_before_anything_happens(
    flux: Tiny, positional: list[str], options: dict[str, Any], error: type[OmniReuseError], message: str
) -> None:
    before = type(flux.pipe), type(flux.pipe.transformer)
    with pytest.raises(error, match=message):
        omnireuse.enable(flux.pipe, *positional, **options)
    assert (type(flux.pipe), type(flux.pipe.transformer)) == before


def test_a_pipeline_without_a_denoiser_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no denoiser: looked for a torch module at transformer"):
        omnireuse.enable(SimpleNamespace(vae=torch.nn.Identity()))


@pytest.mark.parametrize("region", ["blocks", "tail"])
def test_an_undeclared_model_is_refused_in_a_region_of_blocks_and_served_elsewhere(region: str) -> None:
    pipe = SimpleNamespace(transformer=torch.nn.Linear(2, 2))
    with pytest.raises(
        UnknownNameError, match=rf"model for region '{region}'.*regions 'step' and 'call' serve any denoiser"
    ):
        omnireuse.enable(pipe, policy="fixed", region=region)
    assert type(pipe.transformer) is torch.nn.Linear
    omnireuse.enable(pipe, policy="fixed", region="call").disable()


def test_a_schedule_for_more_steps_than_the_run_has_is_an_error_before_the_first_step(flux: Tiny) -> None:
    full = flux.run(steps=8)
    calls: list[int] = []
    hook = flux.pipe.transformer.register_forward_hook(lambda *_: calls.append(1))
    with omnireuse.enable(flux.pipe, policy=Steps(steps=(0, 20))), pytest.raises(StateError, match="8 steps"):
        flux.run(steps=8)
    assert calls == []
    hook.remove()
    assert torch.equal(flux.run(steps=8), full)


def test_zero_steps_are_the_pipelines_own_error_and_leave_it_usable(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, speedup=2):
        expected = flux.run()
        with pytest.raises((ValueError, IndexError, RuntimeError, ZeroDivisionError)):
            flux.run(steps=0)
        assert torch.equal(flux.run(), expected)


def test_x0_promised_on_an_unknown_scheduler_raises_and_by_default_falls_back_audibly(
    flux: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    known = type(flux.pipe.scheduler)
    # The same scheduler under a name of its own, and not as a subclass.
    body = {name: value for name, value in vars(known).items() if name not in ("__dict__", "__weakref__")}
    unknown = type("Unknown", known.__bases__, body)
    flux.pipe.scheduler = unknown.from_config(flux.pipe.scheduler.config)
    with (
        omnireuse.enable(flux.pipe, policy="fixed", prediction_target="x0"),
        pytest.raises(UnsupportedModelError, match="'output'"),
    ):
        flux.run()
    with omnireuse.enable(flux.pipe, policy="fixed") as handle:
        fallen = flux.run()
        flux.run()
    assert caplog.text.count("raw output instead of x0") == 1, "once for each handle"
    assert handle.summary().fallbacks == {"forecasts of the raw output": 2}
    assert handle.summary().reused_calls > 0
    with omnireuse.enable(flux.pipe, policy="fixed", prediction_target="output"):
        assert torch.equal(flux.run(), fallen)


@pytest.mark.parametrize("target", [{"speedup": 2}, {"computed_steps": 3}, {"tolerance": 0.99}])
def test_a_target_is_reached_in_either_region(flux: Tiny, target: dict[str, Any]) -> None:
    with omnireuse.enable(flux.pipe, **target, region="call") as handle:
        flux.run(steps=6)
    assert {event.branch for event in handle.events} == {"cond", "uncond"}
    assert handle.summary().reused_calls > 0
    with pytest.raises(ConfigError, match="region must be 'step' or 'call' beside a target, got 'blocks'"):
        omnireuse.enable(flux.pipe, **target, region="blocks")


def test_a_pipeline_that_goes_ends_reuse_and_that_is_said_unless_it_had_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "omnireuse")
    for disables in (True, False):
        tiny = TINY["flux"]()
        handle = omnireuse.enable(tiny.pipe, policy="never")
        if disables:
            handle.disable()
        del tiny
        gc.collect()
        assert caplog.text.count("FluxPipeline that reuse was enabled on is gone: reuse has ended") == (not disables)
