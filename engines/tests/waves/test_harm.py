"""One client must not harm another: absurd settings, and faults in the work for one request, beside good requests."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.tests.absurd import absurd
from engines.tests.waves.played import PLANS, Engine, State, break_for, request
from omnireuse.errors import ConfigError, OmniReuseError
from omnireuse.loop.generation import Generation
from omnireuse.noise.schedulers import noise_levels
from omnireuse.tuning.loops import RequestPlan
from omnireuse_engines.settings import KEY, RequestSettings
from omnireuse_engines.vllm_omni.admission import Admission, OmniSettings


def serving(config: dict[str, Any]) -> tuple[Engine, Admission]:
    """An engine that plans as the server does, and what admits its requests."""
    settings = OmniSettings(config)

    def plan(state: State) -> RequestPlan:
        return settings.plan(RequestSettings.of(state.sampling.extra_args), None)

    return Engine(plan=plan), Admission(SimpleNamespace(cache_config=config, step_execution=True))


def admitted(admission: Admission, state: State) -> bool:
    try:
        admission.check(SimpleNamespace(sampling_params=state.sampling))
    except OmniReuseError:
        return False
    return True


def test_a_thousand_random_settings_beside_good_requests(caplog: pytest.LogCaptureFixture) -> None:
    rng, (engine, admission) = random.Random(0), serving({"speedup": 2})
    solo = {
        (asked, seed): serving({"speedup": 2})[0].alone(request("solo", "", 20, seed, reuse=asked))
        for asked in ("on", "off")
        for seed in (1, 2)
    }
    kept: list[weakref.ref[Any]] = []
    refused, served, good_done, failed = 0, 0, 0, 0
    running: list[tuple[State, tuple[str, int] | None, bool]] = []
    caplog.set_level(logging.ERROR, "omnireuse")  # a thousand warnings take long to write
    while refused + served < 1000 or running:
        while refused + served < 1000 and len(running) < 6:
            if not any(name for _, name, _ in running):
                name = (rng.choice(("on", "off")), rng.choice((1, 2)))
                running.append((request("good", "", 20, name[1], reuse=name[0]), name, True))
            bad = request("bad", "", rng.randint(2, 12), rng.randint(3, 9), reuse=absurd(rng))
            is_admitted = admitted(admission, bad)
            refused, served = refused + (not is_admitted), served + is_admitted
            running.append((bad, None, is_admitted))  # what is refused comes in all the same, as if admission missed it
        rng.shuffle(running)
        engine.wave([state for state, _, _ in running])
        for each in [each for each in running if each[0].step_index == each[0].total_steps]:
            state, name, is_admitted = each
            running.remove(each)
            if name is not None:
                torch.testing.assert_close(state.latents, solo[name], atol=1e-4, rtol=0)
                assert f"{KEY}_failures" not in state.stage_durations
                good_done += 1
            elif not is_admitted:
                # More or fewer computed steps than the run has are refused at admission alone; a run makes what it can.
                if f"{KEY}_failures" in state.stage_durations:
                    assert state.stage_durations[f"{KEY}_steps_reused"] == 0
                    assert state.stage_durations[f"{KEY}_failures"] == 1
                    failed += 1
                else:
                    assert state.latents.isfinite().all()
            else:
                assert f"{KEY}_failures" not in state.stage_durations, state.sampling
            kept.append(weakref.ref(state.extra[KEY]))
    del state, each, bad
    gc.collect()
    assert refused > 300
    assert served > 150
    assert good_done > 40
    assert refused >= engine.waves.failures == failed > 200
    assert not [each for each in kept if each() is not None]


@pytest.mark.parametrize("asked", [{"quality": 40}, {"computed_steps": 1}, {"speedup": None}])
def test_what_no_wave_can_plan_is_refused_at_admission(asked: object) -> None:
    _, admission = serving({})
    with pytest.raises(OmniReuseError, match=r"quality|computed_steps|speedup"):
        admission.check(SimpleNamespace(sampling_params=request("a", "", 20, 1, reuse=asked).sampling))


def test_a_plan_that_waves_or_ranks_cannot_follow_is_refused_at_admission() -> None:
    parallel = SimpleNamespace(sequence_parallel_size=2, tensor_parallel_size=2, data_parallel_size=2)
    admission = Admission(SimpleNamespace(cache_config={}, step_execution=True, parallel_config=parallel))
    measured = request("a", "", 20, 1, reuse={"tolerance": 0.1})
    with pytest.raises(ConfigError, match="no group of their own"):
        admission.check(SimpleNamespace(sampling_params=measured.sampling))
    admission.check(SimpleNamespace(sampling_params=request("a", "", 20, 1, reuse={"speedup": 3}).sampling))


def test_limits_are_checked_at_admission() -> None:
    _, admission = serving({"max_speedup": 4})
    for asked, is_admitted in (({"speedup": 1e9}, False), ({"computed_steps": 2}, False), ({"speedup": 4}, True)):
        assert admitted(admission, request("a", "", 20, 1, reuse=asked)) is is_admitted, asked


@pytest.mark.parametrize("reuse", [True, False], ids=["forecast", "computed"])
@pytest.mark.parametrize("plan", ["half", "measured", "watched"])
def test_a_fault_in_the_work_for_one_request_leaves_the_others_as_they_are(
    reuse: bool,
    plan: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [(plan, 1), (plan, 2), ("third", 3)]
    solo = [Engine().alone(request("solo", name, 20, seed)) for name, seed in names]
    states = [request(f"request {seed}", name, 20, seed) for name, seed in names]
    cursed, engine = request("cursed", plan, 20, 1), Engine()
    present = [states[0], cursed, *states[1:]]
    break_for(cursed, monkeypatch, reuse=reuse, since=6)
    for _ in range(20):
        engine.wave(present)
    for state, alone in zip(states, solo, strict=True):
        torch.testing.assert_close(state.latents, alone, atol=1e-4, rtol=0)
        assert state.extra[KEY].reused > 0
    assert (engine.waves.failures, cursed.extra[KEY].failures) == (1, 1)
    assert cursed.extra[KEY].computed + cursed.extra[KEY].reused == 20
    assert 0 < cursed.extra[KEY].reused <= 6
    assert cursed.latents.isfinite().all()
    assert "request cursed computes every further step" in caplog.text


def test_a_fault_of_a_request_alone_is_a_full_computation_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Engine().alone(request("plain", "off", 20, 1))
    cursed = request("cursed", "half", 20, 1)
    break_for(cursed, monkeypatch, reuse=True, since=0)
    assert torch.equal(Engine().alone(cursed), plain)
    assert cursed.stage_durations[f"{KEY}_failures"] == 1


def test_a_plan_that_raises_something_else_is_no_ones_but_the_requests(caplog: pytest.LogCaptureFixture) -> None:
    def plan(state: State) -> RequestPlan:
        if state.name == "bad":
            raise ZeroDivisionError("a fault of the program")
        return PLANS["half"]

    engine, good, bad = Engine(plan=plan), request("good", "", 20, 1), request("bad", "", 20, 2)
    for _ in range(20):
        engine.wave([good, bad])
    assert (good.extra[KEY].reused, bad.extra[KEY].reused) == (10, 0)
    assert "ZeroDivisionError: a fault of the program" in caplog.text


def test_a_failed_forecast_whose_computation_fails_ends_the_wave_and_mixes_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, good, cursed = Engine(), request("good", "half", 20, 1), request("cursed", "half", 20, 2)
    break_for(cursed, monkeypatch, reuse=True, since=5)
    strategy = PLANS["half"].strategy
    assert strategy is not None
    schedule = Generation(strategy, noise_levels(good.scheduler)).schedule
    assert schedule is not None
    failing = next(step for step in range(5, 20) if step not in schedule)
    while good.step_index < 20:
        if good.step_index == failing and not engine.waves.failures:
            engine.fails = True
            with pytest.raises(MemoryError):
                engine.wave([good, cursed])
            engine.fails = False
            assert (good.step_index, good.extra[KEY].failures, cursed.extra[KEY].failures) == (failing, 1, 1)
        engine.wave([good, cursed])
    assert good.extra[KEY].reused == cursed.extra[KEY].reused == failing - len([s for s in schedule if s < failing])
    assert good.latents.isfinite().all()
