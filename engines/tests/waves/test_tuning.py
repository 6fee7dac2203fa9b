"""Tuning in continuous batching, against an engine that is played."""

from __future__ import annotations

import gc
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from engines.tests.waves.played import Engine, State, request
from omnireuse import Profile, Strategy
from omnireuse.summary.tuning import Tuning
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.loops import LoopTuner, RequestPlan
from omnireuse.tuning.registry import PlanRegistry
from omnireuse.tuning.store import Store
from omnireuse_engines.request import RequestReuse
from omnireuse_engines.settings import KEY
from omnireuse_engines.vllm_omni.calls import RequestLoop
from omnireuse_engines.waves import WaveTuner

STEPS = 24
UNTUNED = RequestPlan(Strategy.default(), "default")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of tuned plans."""
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock
    return tmp_path


class Pipeline:
    """What a configuration looks at."""

    def __init__(self) -> None:
        self.transformer = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(self.transformer.weight)
        torch.nn.init.zeros_(self.transformer.bias)
        self.scheduler = FlowMatchEulerDiscreteScheduler()


class Tuned:
    """An engine that tunes; keeps count of the calls that shadows make."""

    def __init__(self, *, pictures: int = 3) -> None:
        self.engine = Engine(plan=self.plan, smooth=True, tuner=self)
        self.tuner = WaveTuner(PlanRegistry(pictures=pictures, store=Store(), command="a test"), self.denoise)
        self.pipeline = Pipeline()
        self.shadows: list[int] = []
        """Calls of the model after each wave."""
        self._calls = 0
        self.breaks: Exception | None = None

    def plan(self, state: State) -> RequestPlan:
        return self.tuner.plan(UNTUNED, RequestLoop(state, self.pipeline))

    def end(self, measured: Any, state: State, output: torch.Tensor) -> None:
        self.tuner.end(measured, state, output)

    def forget(self) -> None:
        self.tuner.forget()

    def denoise(self, state: State) -> torch.Tensor:
        self._calls += 1
        if self.breaks is not None:
            raise self.breaks
        return self.engine.denoise([state], states=[state])

    def after_wave(self) -> None:
        self._calls = 0
        self.tuner.after_wave()
        self.shadows.append(self._calls)

    def serve(self, seed: int, beside: Sequence[State] = ()) -> State:
        """Serve a request to its end, with others in its waves as long as they last."""
        state = named(seed)
        while state.step_index < state.total_steps:
            self.engine.wave([state, *(each for each in beside if each.step_index < each.total_steps)])
        return state

    def until_ready(self) -> int:
        """Serve requests until a tuned plan serves one; how many were served before."""
        for number in range(40):
            state = self.serve(100 + number)
            if state.extra[KEY].plan.tuned:
                return number
        raise AssertionError("no plan was found")


def named(seed: int) -> State:
    return request(f"request {seed}", "", STEPS, seed)


def full_of(seed: int) -> torch.Tensor:
    state = named(seed)
    state.plan = "off"
    return Engine(smooth=True).alone(state)


def untuned_of(seed: int) -> torch.Tensor:
    return Engine(plan=lambda _: UNTUNED, smooth=True).alone(named(seed))


def is_full(state: State) -> bool:
    return bool(state.extra[KEY].plan.name == "default, measured" and state.extra[KEY].computed == STEPS)


def test_three_requests_are_computed_in_full_and_a_plan_serves_the_others() -> None:
    tuned = Tuned()
    for seed in range(3):
        state = tuned.serve(seed)
        assert torch.equal(state.latents, full_of(seed))
        assert state.stage_durations["omnireuse_tuned"] == 0.0
        assert state.stage_durations["omnireuse_pictures_measured"] == seed + 1
        assert is_full(state)
    assert tuned.shadows == [*[0] * (3 * STEPS - 1), 1], "shadows begin with the wave that ends the third"
    tuned.until_ready()
    state = tuned.serve(7)
    assert state.stage_durations["omnireuse_tuned"] == 1.0
    assert state.extra[KEY].computed == STEPS // 2
    full = full_of(7)
    assert (state.latents - full).norm() < 0.5 * (untuned_of(7) - full).norm()
    assert torch.equal(tuned.serve(7).latents, state.latents), "the plan is frozen"
    later = Tuned()
    assert torch.equal(later.serve(7).latents, state.latents), "the next process follows it at once"
    assert not any(later.shadows)


@pytest.mark.parametrize(("state", "tuned"), [("measuring", 0.0), ("ready", 1.0)])
def test_the_figures_of_tuning_stay_where_the_untuned_default_does(state: Any, tuned: float) -> None:
    entry: Any = SimpleNamespace(strategy=None, tuning=Tuning(state=state, pictures=3))
    plan = LoopTuner(PlanRegistry(pictures=3, store=Store(), command="a test")).tuned(UNTUNED, entry)
    assert (plan.strategy, plan.name) == (UNTUNED.strategy, UNTUNED.name)
    figures = RequestReuse(plan).figures()
    assert (figures["omnireuse_tuned"], figures["omnireuse_pictures_measured"]) == (tuned, 3.0)


def test_shadows_make_one_call_a_wave_and_cost_no_more_than_six_runs() -> None:
    tuned = Tuned()
    for seed in range(3):
        tuned.serve(seed)
    tuned.until_ready()
    assert max(tuned.shadows) == 1
    assert 3 * STEPS + sum(tuned.shadows) <= 6 * STEPS
    assert tuned.shadows[-1] == 0


def test_requests_beside_a_measured_one_and_beside_shadows_are_untuned_and_unharmed() -> None:
    tuned, others = Tuned(), [named(seed) for seed in range(10, 16)]
    for seed in range(3):
        measured = tuned.serve(seed, beside=others[2 * seed : 2 * seed + 2])
        torch.testing.assert_close(measured.latents, full_of(seed), atol=1e-6, rtol=0)
        assert is_full(measured)
    meanwhile = [tuned.serve(20), tuned.serve(21)]
    assert any(tuned.shadows)
    for state in (*others, *meanwhile):
        assert not is_full(state)
        assert not state.extra[KEY].plan.tuned
        torch.testing.assert_close(state.latents, untuned_of(int(state.name.split()[1])), atol=1e-5, rtol=0)


def test_an_aborted_request_is_not_learnt_from_and_frees_its_place() -> None:
    tuned = Tuned()
    aborted = named(0)
    for _ in range(STEPS - 1):
        tuned.engine.wave([aborted])
    del aborted
    gc.collect()
    for seed in range(1, 4):
        assert is_full(tuned.serve(seed))
    tuned.until_ready()


def test_a_wave_that_raises_and_is_made_again_changes_nothing() -> None:
    tuned, state = Tuned(), named(0)
    while state.step_index < STEPS:
        tuned.engine.fails = state.step_index == 5 and len(tuned.shadows) == 5
        try:
            tuned.engine.wave([state])
        except MemoryError:
            tuned.shadows.append(0)
    assert torch.equal(state.latents, full_of(0))
    for seed in (1, 2):
        assert is_full(tuned.serve(seed))
    tuned.until_ready()


def test_a_request_that_goes_back_to_an_earlier_step_is_not_learnt_from(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "omnireuse")
    tuned, state = Tuned(), named(0)
    for _ in range(6):
        tuned.engine.wave([state])
    state.step_index, state.latents = 0, named(0).latents
    assert torch.equal(tuned.engine.alone(state), full_of(0))
    assert "the loop went back to an earlier step; the next picture is measured" in caplog.text


def test_shadows_that_fail_end_tuning_with_a_warning_and_no_request(caplog: pytest.LogCaptureFixture) -> None:
    tuned, seeds = Tuned(pictures=1), iter(range(9))
    tuned.breaks = MemoryError("no room for a shadow")
    for _ in range(3):
        seed = next(seeds)
        assert torch.equal(tuned.serve(seed).latents, untuned_of(seed) if seed else full_of(seed))
    assert "not tuned, the untuned default is used: MemoryError: no room for a shadow" in caplog.text
    seed = next(seeds)
    assert torch.equal(tuned.serve(seed).latents, untuned_of(seed))


def test_a_loop_that_cannot_be_copied_is_not_measured_and_not_harmed(caplog: pytest.LogCaptureFixture) -> None:
    def fail(memo: object) -> None:
        raise RuntimeError("it holds a socket")

    tuned, state = Tuned(), named(0)
    state.scheduler.__deepcopy__ = fail
    assert torch.equal(tuned.engine.alone(state), untuned_of(0))
    assert state.extra[KEY].failures == 0
    assert "a loop cannot be made again: RuntimeError: it holds a socket" in caplog.text


def test_a_measured_request_changes_no_random_state() -> None:
    tuned, state = Tuned(), named(0)
    state.scheduler.register_to_config(stochastic_sampling=True)
    before = torch.get_rng_state()
    tuned.engine.alone(state)
    assert is_full(state)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_entry_that_ends_meanwhile_keeps_nothing_of_a_measured_request() -> None:
    tuned, state = Tuned(), named(0)
    tuned.engine.wave([state])
    entry = state.extra[KEY].plan.entry
    entry.end("failed", "another request has met an error")
    assert torch.equal(tuned.engine.alone(state), full_of(0))
    assert (entry.calls, entry.is_busy, entry.tuning.state) == ([], False, "failed")


def test_requests_of_two_weights_are_not_measured_together() -> None:
    tuned = Tuned()
    tuned.serve(0)
    state = named(1)
    for _ in range(5):
        tuned.engine.wave([state])
    tuned.engine.waves.forget()
    assert torch.equal(tuned.engine.alone(state), full_of(1))
    assert state.extra[KEY].computed == STEPS
    tuned.serve(2)
    assert tuned.tuner.tuning.pictures == 2  # the first, whose weights are found to be the same, and the last


def test_a_request_on_its_way_forgets_what_other_weights_have_computed() -> None:
    engine, state = Engine(plan=lambda _: UNTUNED, smooth=True), named(0)
    while not state.extra or state.extra[KEY].reused < 2:
        engine.wave([state])
    rows = len(engine.rows)
    engine.waves.forget()
    engine.wave([state])
    engine.wave([state])
    assert len(engine.rows) == rows + 2


def test_a_request_whose_end_fails_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LookupError("nobody expects it")

    tuned = Tuned()
    with monkeypatch.context() as patched:
        patched.setattr("omnireuse_engines.waves.WaveTuner.learn", fail)
        assert torch.equal(tuned.serve(0).latents, full_of(0))
    assert is_full(tuned.serve(1))


@pytest.mark.parametrize("times", [1, 3])
def test_a_loop_without_room_for_its_copy_is_tried_three_times(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    def run_out(*_: object) -> None:
        raise MemoryError("full")

    tuned = Tuned()
    with monkeypatch.context() as patched:
        patched.setattr("omnireuse_engines.waves.WaveLoop.twin", run_out)
        for seed in range(times):
            assert torch.equal(tuned.serve(seed).latents, untuned_of(seed))
    assert is_full(tuned.serve(9)) == (times < 3)


def test_shadows_change_no_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = Tuned()
    inner = tuned.denoise

    def drawing(state: State) -> torch.Tensor:
        return inner(state) + 0 * torch.randn(1)

    monkeypatch.setattr(tuned.tuner, "_denoise", drawing)
    for seed in range(3):
        tuned.serve(seed)
    before = torch.get_rng_state()
    tuned.until_ready()
    assert sum(tuned.shadows) > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_kept_plan_for_branches_is_left_to_request_mode(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    tuned = Tuned()
    for seed in range(3):
        tuned.serve(seed)
    tuned.until_ready()
    (file,) = cache.glob("tuned/*.json")
    kept = Profile.load(file)
    branched = {
        count: plan.__class__(**fields_of(plan, weights=plan.weights * 2)) for count, plan in kept.plans.items()
    }
    configuration = msgspec.convert(json.loads(file.read_text("utf-8"))["configuration"], Configuration)
    assert Store(cache).save(configuration, kept.__class__(**fields_of(kept, plans=branched))) == file
    before = file.read_text("utf-8")
    caplog.set_level(logging.INFO, "omnireuse")
    again = Tuned()
    assert is_full(again.serve(0))
    assert "weights for the branches of guidance" in caplog.text
    for seed in (1, 2):
        again.serve(seed)
    again.until_ready()
    assert file.read_text("utf-8") == before
    assert len(list(cache.glob("tuned/*.json"))) == 2


def fields_of(record: Any, **changes: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__} | changes
