"""Tuning of ComfyUI's runs, on a ComfyUI that is played."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.tests.comfyui.played import STEPS, Guider, InterruptProcessingException, Model, Sampler
from omnireuse.tuning.entry import MOST_MEASURED
from omnireuse_engines.comfyui import attach, plan_for, reuse_of
from omnireuse_engines.comfyui import tuning as tuning_module

COMPUTED = 12


@pytest.fixture(autouse=True)
def tuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock
    tuning_module.registry_in.cache_clear()
    yield
    tuning_module.registry_in.cache_clear()


def picture(model: Model, number: int, sampler: Sampler | None = None, **options: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    text, noise = (torch.randn(1, 2, 4, 4, generator=generator) for _ in range(2))
    return Guider(model, text * 0.3).sample(noise, sampler or Sampler(), **options)


def node(model: Model, *, tune: bool = True, **options: Any) -> Model:
    patched: Model = attach(model, plan_for(**options), tune=tune)
    return patched


def state(model: Model) -> Any:
    return reuse_of(model).summary().tuning


def calls_of(model: Model, number: int, sampler: Sampler | None = None) -> int:
    before = model.origin.calls
    picture(model, number, sampler)
    return model.origin.calls - before


def error(made: torch.Tensor, full: torch.Tensor) -> float:
    return float((made - full).abs().sum() / full.abs().sum())


def test_the_first_pictures_are_full_and_the_others_follow_a_plan_that_is_closer() -> None:
    model = Model()
    patched, untuned = node(model), node(model, tune=False)
    spent = []
    for number in range(3):
        full, before = picture(model, number), model.calls
        assert state(patched).state == "measuring"
        assert torch.equal(picture(patched, number), full)
        spent.append(model.calls - before)
    # The first alone takes its usual time; trial runs take no more than the pictures.
    assert spent[0] == STEPS
    assert spent[1] > STEPS
    assert sum(spent) <= 6 * STEPS
    assert state(patched).state == "ready"
    assert state(patched).runs == pytest.approx(sum(spent) / STEPS, abs=0.01)
    assert calls_of(patched, 3) == COMPUTED
    errors = [
        [error(picture(each, number), picture(model, number)) for number in range(10, 16)]
        for each in (patched, untuned)
    ]
    assert sum(errors[0]) < sum(errors[1])
    summary = reuse_of(patched).summary()
    assert "60 while the pipeline was measured" in str(summary)
    assert "tuned: 12 of 20 steps computed" in str(summary)


def test_a_plan_is_kept_for_other_processes() -> None:
    model = Model()
    patched = node(model)
    for number in range(3):
        picture(patched, number)
    expected, path = picture(patched, 5), state(patched).path
    assert Path(path).is_file()
    tuning_module.registry_in.cache_clear()
    later = node(Model())
    assert calls_of(later, 5) == COMPUTED
    assert torch.equal(picture(later, 5), expected)
    assert state(later).path == path
    # Another model is another configuration.
    other = node(Model(seed=1))
    assert calls_of(other, 5) == STEPS


def test_a_node_that_is_made_again_goes_on() -> None:
    model = Model()
    for number in range(3):
        picture(node(model), number)
    assert calls_of(node(model), 3) == COMPUTED


def test_a_file_switches_reuse_off_from_the_next_run_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    switch = tmp_path / "off"
    monkeypatch.setenv("OMNIREUSE_OFF", str(switch))
    model = Model()
    patched = node(model, tune=False)
    before = picture(patched, 0)
    switch.touch()
    assert torch.equal(picture(patched, 0), picture(model, 0))
    words, shares = reuse_of(patched).report()
    assert words == f"default, switched off by OMNIREUSE_OFF: all {STEPS} steps were computed"
    assert set(shares) == {1.0}
    switch.unlink()
    assert torch.equal(picture(patched, 0), before)
    assert "switched off" not in reuse_of(patched).report()[0]


@pytest.mark.parametrize("how", ["switch", "environment", "tolerance"])
def test_without_tuning_reuse_begins_at_once(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "environment":
        monkeypatch.setenv("OMNIREUSE_TUNE", "0")
    patched = node(Model(), tune=how != "switch", tolerance=0.3 if how == "tolerance" else 0.0)
    assert calls_of(patched, 0) < STEPS
    told = state(patched)
    assert told is None if how != "tolerance" else told.state == "off"


def test_trial_runs_touch_no_callback_and_no_random_state() -> None:
    model = Model()
    patched, told = node(model), list[bool]()
    for number in range(3):
        before = torch.get_rng_state()
        picture(model, number)
        expected = torch.get_rng_state()
        torch.set_rng_state(before)
        picture(patched, number, callback=told.append)
        assert torch.equal(torch.get_rng_state(), expected)
    assert told == [False] * 3 * STEPS


def cancel() -> None:
    raise InterruptProcessingException


def fails() -> None:
    raise RuntimeError("out of luck")


def at_call(model: Model, number: int, act: Any) -> None:
    """Act at a later call of the model."""
    left = 2 * number  # Each call has two parts.

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            act()

    model.on_call = count


def test_an_interrupt_of_a_trial_run_keeps_the_picture_and_what_was_measured() -> None:
    model = Model()
    patched = node(model)
    picture(patched, 0)
    full = picture(model, 1)
    at_call(model, STEPS + 5, cancel)
    assert torch.equal(picture(patched, 1), full)
    assert state(patched).pictures == 2
    assert state(patched).state == "measuring"
    assert calls_of(patched, 2) >= STEPS
    assert state(patched).state == "ready"


def test_an_interrupt_of_a_picture_reaches_comfyui_and_keeps_the_pictures_before() -> None:
    model = Model()
    patched = node(model)
    picture(patched, 0)
    for number in range(1, 5):
        at_call(model, 5, cancel)
        with pytest.raises(InterruptProcessingException):
            picture(patched, number)
        assert state(patched).pictures == 1
    for number in (1, 2):
        picture(patched, number)
    assert state(patched).state == "ready"


def test_an_interrupt_of_trial_runs_that_come_first_reaches_comfyui() -> None:
    """A batch of three pictures measures everything at once; trial runs that were not made come before the next run."""
    model = Model()
    patched = node(model)

    def batch(seed: int) -> torch.Tensor:
        noise = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(seed))
        return Guider(patched, torch.zeros(())).sample(noise, Sampler())

    at_call(model, STEPS + 5, cancel)
    batch(0)
    assert state(patched).pictures == 3
    at_call(model, 5, cancel)
    with pytest.raises(InterruptProcessingException):
        batch(1)
    assert state(patched).pictures == 3
    before = model.calls
    batch(2)
    assert state(patched).state == "ready"
    assert COMPUTED < model.calls - before <= COMPUTED + STEPS


def runs_out(*_: object) -> None:
    raise torch.OutOfMemoryError("out of luck")


def test_three_failures_of_trial_runs_in_a_row_end_tuning_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    patched = node(model)
    with caplog.at_level(logging.WARNING, "omnireuse"):
        for number in range(3):
            full = picture(model, number)
            if number:
                at_call(model, STEPS + 5, runs_out)
            assert torch.equal(picture(patched, number), full)
        at_call(model, 5, runs_out)
        picture(patched, 3)
    assert state(patched).state == "failed"
    assert [record.message for record in caplog.records] == [str(state(patched))]
    assert "out of luck" in caplog.text
    assert calls_of(patched, 4) == COMPUTED


def test_a_picture_that_fails_raises_its_own_error() -> None:
    model = Model()
    patched = node(model)
    at_call(model, 5, fails)
    with pytest.raises(RuntimeError, match="out of luck"):
        picture(patched, 0)
    assert state(patched).pictures == 0
    assert calls_of(patched, 0) == STEPS


@pytest.mark.parametrize(("name", "why"), [("heun", "more than once a step"), ("euler_ancestral", "adds noise")])
def test_a_sampler_without_fitted_weights_gets_the_untuned_default(name: str, why: str) -> None:
    model = Model()
    patched, untuned = node(model), node(model, tune=False)
    made = []
    for each in (patched, untuned):
        torch.manual_seed(0)
        made.append(picture(each, 0, Sampler(name)))
    assert torch.equal(*made)
    assert state(patched).state == "off"
    assert f"no weights can be fitted for the sampler {name}" in state(patched).reason
    assert why in str(reuse_of(patched).summary())


def test_a_run_whose_latents_another_node_changes_is_not_tuned() -> None:
    model = Model()
    model.add_wrapper_with_key("predict_noise", "other", lambda executor, x, *rest: executor(x + 0.1, *rest))
    patched, untuned = node(model), node(model, tune=False)
    assert torch.equal(picture(patched, 0), picture(model, 0))
    assert "other nodes change the sampler's latents" in state(patched).reason
    assert torch.equal(picture(patched, 1), picture(untuned, 1))


def test_a_run_with_a_mask_is_not_tuned() -> None:
    patched = node(Model())
    picture(patched, 0, denoise_mask=torch.ones(1))
    assert state(patched).reason == "runs with a mask are not tuned"


def test_a_model_that_cannot_be_told_from_others_is_served_untuned_and_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Model, "model_dtype", lambda _: fails())
    patched = node(Model())
    with caplog.at_level(logging.INFO, "omnireuse"):
        assert [calls_of(patched, number) for number in range(2)] == [COMPUTED] * 2
    said = "not tuned, the untuned default is used: RuntimeError: out of luck"
    assert sum(said in record.getMessage() for record in caplog.records) == 1
    assert said in str(reuse_of(patched).summary())


@pytest.mark.parametrize("place", ["RunNoise", "conditions_of", "measured_response"])
def test_an_error_that_nobody_expects_leaves_the_untuned_default_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    model = Model()
    patched, untuned = node(model), node(model, tune=False)
    monkeypatch.setattr(tuning_module, place, lambda *_, **__: fails())
    assert torch.equal(picture(patched, 0), picture(untuned, 0))
    assert state(patched).state == "failed"
    assert reuse_of(patched).summary().fallbacks == {"the untuned default": 1}


def test_configurations_are_measured_apart_and_few_at_a_time() -> None:
    model = Model()
    patched = node(model)
    widths = range(4, 4 + MOST_MEASURED + 1)

    def wide(width: int, seed: int) -> None:
        noise = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(seed))
        Guider(patched, torch.zeros(()), cfg=float(width)).sample(noise, Sampler())

    for width in widths:
        wide(width, 0)
        if state(patched).state == "waiting":  # few are begun at once; its second picture is measured
            wide(width, 0)
        assert state(patched).pictures == 1
    # The one that was measured first was set aside. What it has shown counts once reuse has saved enough for more.
    wide(widths[-1], 1)
    assert state(patched).pictures == 2
    wide(widths[0], 1)
    assert (state(patched).state, state(patched).pictures) == ("waiting", 1)


@pytest.mark.parametrize("name", ["euler", "euler_ancestral", "heun"])
def test_sigmas_are_read_from_the_device_only_where_nothing_tells_them(name: str) -> None:
    patched, sampler = node(Model(), tune=False), Sampler(name)
    picture(patched, 0, sampler)
    first, sampler.reads = sampler.reads, 0
    picture(patched, 1, sampler)
    # Heun's method calls the model twice a step, at sigmas that a run without the model shows.
    assert (first, sampler.reads) == (0, 0)


def test_a_tuned_picture_reads_no_sigma_and_its_trial_runs_do_not() -> None:
    patched, sampler = node(Model()), Sampler()
    for number in range(4):
        picture(patched, number, sampler)
    assert sampler.reads == 0
    assert state(patched).state == "ready"


def test_a_sampler_that_changes_its_calls_is_named_and_read_again(caplog: pytest.LogCaptureFixture) -> None:
    patched, sampler = node(Model(), tune=False), Sampler("heun")
    picture(patched, 0, sampler)
    sampler.solver = Sampler("euler").solver
    picture(patched, 1, sampler)
    assert "the sampler made 20 calls of the model that do not fit" in caplog.text
    sampler.reads = 0
    picture(patched, 2, sampler)
    assert sampler.reads == STEPS


def test_the_summary_is_of_the_latest_item_of_the_queue() -> None:
    item = ["first"]
    patched: Model = attach(Model(), plan_for(speedup=2.0), item=lambda: item[0])
    picture(patched, 0)
    picture(patched, 1)
    assert reuse_of(patched).summary().runs == 2
    item[0] = "second"
    picture(patched, 2)
    summary = reuse_of(patched).summary()
    assert (summary.runs, summary.computed_calls) == (1, 10)
