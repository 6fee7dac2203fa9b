"""Trial runs beside a user who changes things, stops things, or has no time."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler

import omnireuse
from omnireuse import TuneOptions
from omnireuse.errors import ConfigError
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import small_flux as tiny_flux
from tests.helpers.tiny import stable_diffusion as tiny_sd

STEPS = 16
Callback = Callable[[Any, int, Any, dict[str, Any]], dict[str, Any]]


class Calls:
    """The calls of a denoiser so far."""

    def __init__(self, tiny: Tiny) -> None:
        self.made = 0
        tiny.pipe.transformer.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self.made += 1


def other_latents(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {"latents": values["latents"] * 1.01} if step == 3 else values


def latents_in_place(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
    values["latents"].mul_(1.01)
    return values


def other_prompt(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {"prompt_embeds": values["prompt_embeds"] * 2} if step == 3 else {}


def other_guidance(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
    pipe._guidance_scale = 2.0
    return values


def equal_latents(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {"latents": values["latents"].clone()}


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (other_latents, "latents"),
        pytest.param(latents_in_place, "latents", marks=pytest.mark.sweep),
        (other_prompt, "prompt_embeds"),
        (other_guidance, "the pipeline's _guidance_scale"),
    ],
)
def test_a_picture_whose_callback_changes_something_is_not_measured(flux: Tiny, callback: Callback, words: str) -> None:
    more = {"callback_on_step_end": callback, "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"]}
    full, changed = flux.run(steps=STEPS), flux.run(steps=STEPS, **more)
    with omnireuse.enable(flux.pipe) as handle:
        assert torch.equal(flux.run(steps=STEPS, **more), changed)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 0)
        assert f"a picture was not measured: its callback changed {words}" in str(handle.summary())
        flux.run(steps=STEPS, **more)
        assert handle.tuning.state == "off", "a configuration of its own"
        assert f"changes the run ({words})" in str(handle.summary())
        for number in range(1, 4):
            assert torch.equal(flux.run(steps=STEPS), full)
            assert handle.tuning.pictures == number


def test_a_picture_whose_callback_looks_on_is_measured(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe) as handle:
        for _ in range(3):
            flux.run(steps=STEPS, callback_on_step_end=equal_latents)
        assert handle.tuning.state == "ready"


def test_a_callback_that_changes_nothing_any_more_is_measured_again(flux: Tiny) -> None:
    changes = [True]

    def callback(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        return {"latents": values["latents"] + 1} if changes[0] else values

    with omnireuse.enable(flux.pipe) as handle:
        for _ in range(2):
            flux.run(steps=STEPS, callback_on_step_end=callback)
        changes[0] = False
        for _ in range(2):
            flux.run(steps=STEPS, callback_on_step_end=callback)
        assert handle.tuning.pictures == 1


def test_latents_of_another_shape_in_mid_run_are_a_reason_in_words(caplog: pytest.LogCaptureFixture) -> None:
    tiny = tiny_sd()
    tiny.pipe.scheduler = DDIMScheduler.from_config(tiny.pipe.scheduler.config)

    def grow(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        return {"latents": values["latents"].repeat_interleave(2, -1)} if step == 5 else values

    with caplog.at_level(logging.WARNING, "omnireuse"), omnireuse.enable(tiny.pipe) as handle:
        tiny.run(steps=STEPS, callback_on_step_end=grow)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 0)
        assert "its callback changed latents" in str(handle.tuning)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def stopped(way: str, handle: omnireuse.Handle) -> Callback:
    """A callback that stops a picture's trial runs at the third heartbeat."""
    beats = iter(range(STEPS - 1 - 3, 10**6))

    def callback(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        if step == STEPS - 1 and next(beats) == STEPS - 1:
            if way == "error":
                raise RuntimeError("stop")
            if way == "interrupt":
                pipe._interrupt = True
            else:
                handle.interrupt()
        return values

    return callback


@pytest.mark.parametrize("way", ["error", "interrupt", "handle"])
def test_what_is_stopped_stops_and_goes_on_with_the_next_picture(flux: Tiny, way: str) -> None:
    full, calls = flux.run(steps=STEPS), Calls(flux)
    with omnireuse.enable(flux.pipe) as handle:
        flux.run(steps=STEPS)
        before = calls.made
        assert torch.equal(flux.run(steps=STEPS, callback_on_step_end=stopped(way, handle)), full)
        assert calls.made - before <= 2 * STEPS + 4, "at most two steps more"
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 2)
        assert "trial runs go on" in str(handle.tuning)
        flux.run(steps=STEPS)
        assert handle.tuning.state == "ready"


def test_a_picture_that_is_interrupted_is_not_measured_and_no_failure(flux: Tiny) -> None:
    def stop(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        pipe._interrupt = step == 4
        return values

    with omnireuse.enable(flux.pipe) as handle:
        for _ in range(4):
            flux.run(steps=STEPS, callback_on_step_end=stop)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 0)
        assert "it was interrupted" in str(handle.tuning)


def test_an_interrupt_that_is_none_of_a_program_reaches_the_user_from_a_heartbeat(flux: Tiny) -> None:
    seen: list[int] = []

    def cancel(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        seen.append(step)
        if len(seen) > STEPS:
            raise KeyboardInterrupt
        return values

    with omnireuse.enable(flux.pipe) as handle:
        flux.run(steps=STEPS)
        with pytest.raises(KeyboardInterrupt):
            flux.run(steps=STEPS, callback_on_step_end=cancel)
        assert handle.tuning.pictures == 2


def test_the_heartbeat_has_the_arguments_of_the_last_step_and_can_be_turned_off(flux: Tiny) -> None:
    seen: list[tuple[int, bool]] = []

    def callback(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        seen.append((step, pipe is flux.pipe))
        values["latents"].zero_()  # of a copy, and for nothing
        return values

    def look(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        return callback(pipe, step, timestep, values) if len(seen) >= STEPS else seen.append((step, True)) or values

    for heartbeat in (True, False):
        seen.clear()
        full = flux.run(steps=STEPS)
        with omnireuse.enable(flux.pipe, tune=TuneOptions(pictures=1, heartbeat=heartbeat)) as handle:
            assert torch.equal(flux.run(steps=STEPS, callback_on_step_end=look), full)
            assert handle.tuning.state == "ready"
            Path(str(handle.tuning.path)).unlink()
        assert [step for step, _ in seen[:STEPS]] == [*range(STEPS)]
        assert set(seen[STEPS:]) == ({(STEPS - 1, True)} if heartbeat else set())


@pytest.mark.parametrize("options", [{"pictures": 0}, {"pictures": True}, {"heartbeat": 1}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TuneOptions(**options)


def test_trial_runs_go_on_in_the_next_process(flux: Tiny, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with omnireuse.enable(flux.pipe) as handle:
        for seed in range(3):
            flux.run(steps=STEPS, seed=seed)
        (plan,) = handle.tuned_profile.plans.values()  # type: ignore[union-attr]  # it is ready
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", 0.0)
    monkeypatch.setattr("omnireuse.tuning.entry.UNNOTICED", 0.0)
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(cache / "other"))
    spent, states = list[int](), list[str]()
    while "ready" not in states:
        assert len(states) < 16
        tiny = tiny_flux()  # one picture a program
        calls = Calls(tiny)
        with omnireuse.enable(tiny.pipe) as handle:
            tiny.run(steps=STEPS, seed=len(states))
            states.append(handle.tuning.state)
            profile = handle.tuned_profile
        spent.append(calls.made)
    assert max(spent) <= 3 * STEPS, "one trial run each"
    assert profile is not None
    (other,) = profile.plans.values()
    assert other.evidence is not None
    assert plan.evidence is not None
    assert len(other.evidence.errors) == 2, "each candidate has followed two pictures; the first was not tried"
    assert len(states) > 4


def _measured(number: int, folder: str, made: Any, go: Any) -> None:
    go.wait()
    os.environ["OMNIREUSE_CACHE_DIR"] = folder
    for seed in range(2):
        _FORKED[0].run(steps=STEPS, seed=seed)
    handle = omnireuse.handle_of(_FORKED[0].pipe)
    assert handle is not None
    made.put((number, handle.tuning.pictures, handle.tuning.state))
    go.wait()


_FORKED: list[Tiny] = []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_forked_workers_measure_once_between_them(flux: Tiny, cache: Path) -> None:
    _FORKED[:] = [flux]
    context = multiprocessing.get_context("fork")
    with omnireuse.enable(flux.pipe):
        flux.run(steps=STEPS)  # the parent has begun
        made, go = context.Queue(), context.Barrier(2)
        workers = [context.Process(target=_measured, args=(each, str(cache), made, go)) for each in range(2)]
        for worker in workers:
            worker.start()
        states = sorted((made.get(timeout=300)[1:] for _ in workers), key=str)
        for worker in workers:
            worker.join(60)
    _FORKED.clear()
    assert sorted(state for _, state in states) in (["measuring", "waiting"], ["ready", "waiting"])
