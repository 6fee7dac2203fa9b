"""Waves of continuous batching, against an engine that is played: joins, leaves, aborts and faults at random."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
import torch

from engines.tests.waves.played import PLANS, Engine, State, request
from omnireuse_engines.settings import KEY
from omnireuse_engines.waves import Waves


def test_a_request_alone_computes_as_often_as_its_plan_says() -> None:
    engine = Engine()
    state = request("a", "half", 24, 1)
    engine.alone(state)
    assert (state.extra[KEY].computed, state.extra[KEY].reused, sum(engine.rows)) == (12, 12, 12)
    assert state.stage_durations == {
        "omnireuse_strategy": "half",
        "omnireuse_steps_computed": 12.0,
        "omnireuse_steps_reused": 12.0,
    }


def test_off_computes_every_step_and_changes_no_bit() -> None:
    engine, plain = Engine(), request("plain", "off", 10, 1)
    for _ in range(10):
        output = engine.denoise([plain], states=[plain])
        plain.latents = plain.latents + (plain.noise(1) - plain.noise()) * output
        plain.step_index += 1
    assert torch.equal(engine.alone(request("a", "off", 10, 1)), plain.latents)


@pytest.mark.parametrize("plan", PLANS)
def test_a_request_that_joins_equals_its_solo_run(plan: str) -> None:
    engine = Engine()
    first, second = request("first", "half", 20, 1), request("second", plan, 14, 2)
    for wave in range(20):
        engine.wave([each for each in (second, first) if each is first or 3 <= wave < 17])
    torch.testing.assert_close(first.latents, engine.alone(request("a", "half", 20, 1)), atol=1e-4, rtol=0)
    torch.testing.assert_close(second.latents, engine.alone(request("b", plan, 14, 2)), atol=1e-4, rtol=0)
    assert bool(second.extra[KEY].reused) is (plan != "off")


def test_only_requests_that_compute_go_through_the_transformer() -> None:
    engine = Engine()
    first, second = request("first", "half", 20, 1), request("second", "half", 20, 2)
    for wave in range(21):
        engine.wave([each for each, start in ((first, 0), (second, 1)) if start <= wave < start + 20])
    assert sum(engine.rows) == first.extra[KEY].computed + second.extra[KEY].computed < 40


def test_random_waves_with_aborts_and_faults_leak_nothing_and_mix_nothing_up() -> None:
    rng, engine, solo = random.Random(0), Engine(), {}
    for name in [(plan, steps, seed) for plan in PLANS for steps in (4, 7, 20) for seed in (1, 2)]:
        solo[name] = Engine().alone(request("solo", *name))
    kept: list[weakref.ref[Any]] = []
    finished = 0
    for _ in range(200):
        running: list[tuple[tuple[str, int, int], State]] = []
        for number in range(rng.randint(1, 3)):
            name = rng.choice(list(solo))
            running.append((name, request(f"request {number}", *name)))
        while running:
            rng.shuffle(running)
            present = running[: rng.randint(1, len(running))]
            engine.fails = rng.random() < 0.05
            try:
                engine.wave([state for _, state in present])
            except MemoryError:
                running.remove(present[0])  # the engine drops one; the others try again
                continue
            for name, state in [each for each in present if each[1].step_index == each[1].total_steps]:
                torch.testing.assert_close(state.latents, solo[name], atol=1e-4, rtol=0)
                finished += 1
                running.remove((name, state))
                if state.extra[KEY].generation is not None:
                    kept.append(weakref.ref(state.extra[KEY].generation))
            if running and rng.random() < 0.02:
                running.pop()  # aborted
    del running, present, state
    gc.collect()
    assert finished > 200
    assert not [each for each in kept if each() is not None]


def test_a_new_chunk_starts_anew() -> None:
    engine, state = Engine(), request("a", "half", 20, 1)
    first = engine.alone(state)
    state.chunk_index, state.step_index, state.latents = 1, 0, request("a", "half", 20, 1).latents
    state.scheduler.set_timesteps(20)
    assert torch.equal(engine.alone(state), first)


def test_an_interrupted_pipeline_is_passed_on() -> None:
    waves = Waves(lambda *_, **__: None, list, lambda state: PLANS["half"])
    state = request("a", "half", 20, 1)
    assert waves.denoise_step([state], states=[state]) is None


def relative_error(latents: torch.Tensor, full: torch.Tensor) -> float:
    return float((latents - full).abs().sum() / full.abs().sum())


def entering(plan: str, known: str) -> State:
    """A request that begins at the eighth of 28 steps."""
    if known == "all steps":  # resumed: the engine knows them, and has made some
        state = request("a", plan, 28, 1)
        state.step_index = 8
        return state
    state = request("a", plan, 20, 1, begin=8)  # image-to-image: the engine knows the steps that are left
    if known == "too many steps":  # the scheduler has more of them, and does not say which are made
        state.scheduler.timesteps = torch.cat([state.scheduler.timesteps, state.scheduler.timesteps[-1:]])
    return state


@pytest.mark.parametrize(("plan", "most"), [("half", 0.005), ("measured", 0.1)])
def test_a_request_that_enters_in_the_middle_ends_near_its_full_run(plan: str, most: float) -> None:
    full = Engine(smooth=True).alone(entering("off", "all steps"))
    made = {}
    for known in ("all steps", "steps left", "too many steps"):
        state = entering(plan, known)
        made[known] = Engine(smooth=True).alone(state)
        reuse = state.extra[KEY]
        assert (reuse.computed + reuse.reused, reuse.failures) == (20, 0)
        assert reuse.reused >= 5
        assert relative_error(made[known], full) < most
    # The noise of each step is known in both, and is the same.
    assert torch.equal(made["all steps"], made["steps left"])


def test_a_request_that_goes_back_to_an_earlier_step_begins_anew() -> None:
    engine, state = Engine(), request("a", "half", 20, 1)
    earlier = []
    for _ in range(9):
        earlier.append(state.latents)
        engine.wave([state])
    state.step_index, state.latents = 3, earlier[3]
    again = engine.alone(state)
    resumed = request("b", "half", 20, 1)
    resumed.step_index, resumed.latents = 3, earlier[3]
    assert torch.equal(Engine().alone(resumed), again)
