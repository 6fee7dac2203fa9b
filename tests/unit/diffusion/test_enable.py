"""`omnireuse.enable`: three ways to say how, and a clear error for everything else before any step runs."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline

import omnireuse
from omnireuse import Steps
from omnireuse.errors import (
    ConfigError,
    StateError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from omnireuse.policies.fixed import Never
from tests import TOP
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
            match=r"this FluxPipeline \(2x fewer steps\); call .*disable\(pipeline\) first, or use .*handle_of",
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


# -- the mistakes of a first day ---------------------------------------------------------------------------------------


PROFILES = TOP / "models/shapes-flux/profiles"


@pytest.mark.parametrize(("given", "named"), [(FluxPipeline, "got the class FluxPipeline"), (None, "got None")])
def test_a_class_and_none_are_no_loaded_pipeline(given: Any, named: str) -> None:
    for function in (omnireuse.enable, omnireuse.disable):
        with pytest.raises(WrongTypeError, match=rf"{named}; pass a loaded pipeline, as FluxPipeline\.from_pretrained"):
            function(given)


@pytest.mark.parametrize("given", [{}, {"backend": "error_control"}, {"policy": "fixed"}], ids=str)
def test_a_group_is_a_process_group(flux: Tiny, given: Any) -> None:
    with pytest.raises(WrongTypeError, match=r"enable\(group=3\): group must be a torch\.distributed process group"):
        omnireuse.enable(flux.pipe, **given, group=3)


@pytest.mark.parametrize("steps", [0, -3, 2.5, "28", True])
def test_the_number_of_expected_steps_is_a_whole_number(flux: Tiny, steps: Any) -> None:
    handle = omnireuse.enable(flux.pipe, policy="fixed")
    with pytest.raises(ConfigError, match="num_inference_steps must be a whole number of at least 1, got"):
        handle.expect(steps)


def test_a_run_of_one_step_is_not_told_to_take_fewer(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(flux.pipe, policy="fixed"):
        flux.run(steps=1)
    assert "a run of 1 step leaves none out with these settings; it needs no reuse" in caplog.text


def test_latents_that_a_callback_breaks_are_not_laid_on_the_forecaster_alone(flux: Tiny) -> None:
    def broken(pipe: Any, step: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        return {"latents": given["latents"] * torch.nan}

    omnireuse.enable(flux.pipe, policy="fixed")
    with pytest.raises(StateError, match="from step 1 on, which Hold forecast, unless a callback changed them there"):
        flux.run(callback_on_step_end=broken)


@pytest.mark.parametrize("made", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_handle_is_not_copied_and_its_summary_is_pickled(flux: Tiny, made: Any) -> None:
    with omnireuse.enable(flux.pipe, policy="fixed") as handle:
        flux.run()
        with pytest.raises(WrongTypeError, match=r"a Handle .* cannot be copied or pickled; call omnireuse\.enable"):
            made(handle)
    assert pickle.loads(pickle.dumps(handle.summary())) == handle.summary()


def test_the_profile_of_another_model_names_both(flux: Tiny) -> None:
    with pytest.raises(StateError, match=r"calibrate this pipeline, a FluxPipeline \(the profile is of shapes-flux\)"):
        omnireuse.enable(flux.pipe, profile=PROFILES / "shapes-flux-28-unguided.json")


def test_a_folder_of_several_profiles_lists_them(flux: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write one with Profile\.save"):
        omnireuse.enable(flux.pipe, profile=tmp_path)
    for each in sorted(PROFILES.glob("*.json")):
        shutil.copy(each, tmp_path)
    with pytest.raises(ConfigError, match=r"it has shapes-flux-28-guided\.json, .*: give one of them, such as"):
        omnireuse.enable(flux.pipe, profile=tmp_path)


def test_prompts_need_a_text_encoder(flux: Tiny) -> None:
    with pytest.raises(ConfigError, match="FluxPipeline: text_encoder must be there to draw prompts, got None; load"):
        omnireuse.calibrate(flux.pipe, [f"prompt {number}" for number in range(18)], steps=8, progress=False)


def test_more_computed_steps_than_the_run_has(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(flux.pipe, computed_steps=40):
        flux.run(steps=24)
        flux.run(steps=24)
    (message,) = (each.getMessage() for each in caplog.records if each.name == "omnireuse")
    assert message == (
        "40 computed steps are asked for and the run has 24, so all are computed; ask for fewer to reuse some"
    )


def test_an_observer_that_raises_is_logged_once_with_its_name_and_goes_on_being_called(
    flux: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def shows(decision: omnireuse.Decision) -> None:
        seen.append(decision.step)
        raise KeyError("no such widget")

    expected = flux.run(steps=6)
    with omnireuse.enable(flux.pipe, policy="never") as handle:
        handle.subscribe(shows)
        assert torch.equal(flux.run(steps=6), expected)
    assert seen == [0, 1, 2, 3, 4, 5]
    (said,) = [record.message for record in caplog.records if "observer" in record.message]
    assert "shows has raised" in said


def test_a_subscription_in_the_middle_of_a_run_takes_effect_at_once(flux: Tiny) -> None:
    seen: list[int] = []
    with omnireuse.enable(flux.pipe, policy="never") as handle:

        def callback(_pipe: object, step: int, _time: object, _given: object) -> dict[str, object]:
            if step == 2:
                ends.append(handle.subscribe(lambda decision: seen.append(decision.step)))
            if step == 4:
                ends[0]()
            return {}

        ends: list[Callable[[], None]] = []
        flux.run(steps=6, callback_on_step_end=callback)
    assert seen == [3, 4]


def test_an_engines_hook_that_raises_ends_no_generation() -> None:
    generation = omnireuse.Generation(omnireuse.Strategy(policy=Never()), total=3, emit=lambda _: 1 / 0)
    for step in range(3):
        assert generation.computes(step, torch.ones(2))
        generation.use(torch.ones(2), torch.ones(2))
    assert generation.finished
