"""The decision core on its own: no pipeline, no hooks, no threads."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from hypothesis import given
from hypothesis import strategies as st

from omnireuse import Blend, ErrorControl, EveryNth, Hold, Polynomial, Spread, Steps, Strategy
from omnireuse.errors import ConfigError, OmniReuseError
from omnireuse.forecasters import Forecaster
from omnireuse.loop.events import Choice, Decision
from omnireuse.loop.generation import Generation, layout_of
from omnireuse.loop.wave import Wave
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.noise.schedulers import noise_levels
from omnireuse.policies import StepMask

FORECASTERS: list[Forecaster] = [
    Hold(),
    Polynomial(order=1),
    Polynomial(order=2),
    Blend(),
    Blend(order=2),
    Blend(corrects=True),
]
EVERY_OTHER = EveryNth(every=2)


def levels_of(steps: int) -> list[NoiseLevel]:
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(steps)
    return noise_levels(scheduler)


def model(latents: torch.Tensor, level: NoiseLevel) -> torch.Tensor:
    """A velocity whose path bends."""
    noise = level.coordinate
    return torch.sin(3 * latents) * (0.3 + noise) + latents.roll(1, -1) * noise**2


@dataclass
class Request:
    """A sampling loop taken apart, so that several can go in one batch."""

    generation: Generation
    levels: list[NoiseLevel]
    latents: torch.Tensor
    handed_on: list[torch.Tensor] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return not self.generation.finished

    def decide(self) -> Choice:
        return self.generation.decide(layout=layout_of(self.latents), signal=self.latents)

    def compute(self) -> torch.Tensor:
        return model(self.latents, self.generation.level)

    def go_on(self, use: Callable[[], torch.Tensor]) -> None:
        index, output = self.generation.index, use()
        self.handed_on.append(output)
        after = self.levels[index + 1].coordinate if index + 1 < len(self.levels) else 0.0
        self.latents = self.latents + (after - self.levels[index].coordinate) * output

    def step_alone(self) -> None:
        self.go_on(self._used)
        self.generation.advance()

    def _used(self) -> torch.Tensor:
        choice = self.decide()
        if choice.reuse:
            return self.generation.carry_out(choice, None, self.latents)
        return self.generation.carry_out(choice, self.compute(), self.latents)


def request(strategy: Strategy, steps: int, seed: int, shape: tuple[int, ...] = (2, 3, 8), **options: Any) -> Request:
    levels = levels_of(steps)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return Request(Generation(strategy, levels, **options), levels, latents)


def run_alone(strategy: Strategy, steps: int, seed: int, **options: Any) -> Request:
    alone = request(strategy, steps, seed, **options)
    while alone.is_running:
        alone.step_alone()
    return alone


def step_together(requests: list[Request]) -> None:
    """One wave: all are asked before any computes."""
    computes = [each.generation.computes(each.generation.index, each.latents) for each in requests]
    for each, is_computed in zip(requests, computes, strict=True):
        each.go_on(
            lambda each=each, own=is_computed: each.generation.use(each.compute() if own else None, each.latents)
        )


def test_deciding_changes_nothing() -> None:
    alone = request(Strategy(policy=ErrorControl(tolerance=0.15), forecaster=Blend()), 12, 0)
    while alone.is_running:
        before = copy.deepcopy(vars(alone.generation))
        first = alone.decide()
        for name, value in vars(alone.generation).items():
            # The repr of a function or an object of its own is its address.
            assert repr(value) == repr(before[name]) or " at 0x" in repr(value)
        kept, again = alone.generation.kept_bytes, alone.decide()
        assert (again.reuse, again.reason, again.view) == (first.reuse, first.reason, first.view)
        assert alone.generation.kept_bytes == kept
        alone.step_alone()


@pytest.mark.parametrize("policy", [Spread(speedup=2.0), Steps(steps=(0, 3, 4)), StepMask(mask="fast")])
def test_a_schedule_is_known_ahead_and_kept(policy: Any) -> None:
    events: list[Decision] = []
    alone = request(Strategy(policy=policy), 20, 0, emit=events.append)
    ahead = alone.generation.schedule
    while alone.is_running:
        alone.step_alone()
    assert ahead is not None
    assert {event.step for event in events if not event.reused} == ahead
    assert 0 < len(ahead) < 20


def test_a_policy_that_measures_knows_no_schedule() -> None:
    assert Generation(Strategy(policy=ErrorControl()), levels_of(8)).schedule is None
    assert Generation(Strategy(policy=EVERY_OTHER)).schedule is None


def test_events_name_the_generation() -> None:
    events: list[Decision] = []
    run_alone(Strategy(policy=EVERY_OTHER), 6, 0, number=7, emit=events.append)
    assert [(event.run, event.step, event.reused) for event in events] == [
        (7, step, step in (1, 3)) for step in range(6)
    ]


@pytest.mark.parametrize("forecaster", FORECASTERS, ids=repr)
def test_a_copy_goes_on_by_itself(forecaster: Forecaster) -> None:
    alone = request(Strategy(policy=EVERY_OTHER, forecaster=forecaster), 12, 0)
    for _ in range(5):
        alone.step_alone()
    twin = Request(alone.generation.copy(), alone.levels, alone.latents)
    assert twin.generation.kept_bytes == alone.generation.kept_bytes > 0
    alone.generation.finish()
    assert alone.generation.kept_bytes == 0
    while twin.is_running:
        twin.step_alone()
    whole = run_alone(Strategy(policy=EVERY_OTHER, forecaster=forecaster), 12, 0)
    assert torch.equal(twin.latents, whole.latents)


def test_a_generation_is_pickled_and_deepcopied() -> None:
    alone = request(Strategy(policy=EVERY_OTHER, forecaster=Blend()), 12, 0)
    for _ in range(5):
        alone.step_alone()
    for way in (copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        twin = Request(way(alone.generation), alone.levels, alone.latents)
        while twin.is_running:
            twin.step_alone()
        assert torch.equal(twin.latents, run_alone(Strategy(policy=EVERY_OTHER, forecaster=Blend()), 12, 0).latents)


def test_a_generation_moves_between_devices() -> None:
    alone = request(Strategy(policy=EVERY_OTHER, forecaster=Blend()), 12, 0)
    for _ in range(5):
        alone.step_alone()
    moved = alone.generation.to("meta")
    on_meta = moved.carry_out(moved.decide(layout=layout_of(alone.latents.to("meta"))), None, alone.latents.to("meta"))
    assert (on_meta.device.type, on_meta.shape) == ("meta", alone.latents.shape)
    back = Request(alone.generation.to("cpu"), alone.levels, alone.latents)
    while back.is_running:
        back.step_alone()
    assert torch.equal(back.latents, run_alone(Strategy(policy=EVERY_OTHER, forecaster=Blend()), 12, 0).latents)


def test_branches_remember_apart() -> None:
    generation = Generation(Strategy(policy=EVERY_OTHER, region="call", prediction_target="output"), levels_of(6))
    for branch, value in (("cond", 1.0), ("uncond", 2.0)):
        choice = generation.decide(branch)
        generation.carry_out(choice, torch.full((1, 2), value), torch.zeros(1, 2))
    generation.advance()
    for branch, value in (("cond", 1.0), ("uncond", 2.0)):
        forecast = generation.carry_out(generation.decide(branch), None, torch.zeros(1, 2))
        assert torch.equal(forecast, torch.full((1, 2), value))


def test_gradients_are_refused() -> None:
    generation = Generation(Strategy(policy=EVERY_OTHER), levels_of(6))
    output = torch.ones(1, 2, requires_grad=True)
    with pytest.raises(OmniReuseError, match="gradient"):
        generation.carry_out(generation.decide(), output, torch.zeros(1, 2))


def test_a_step_is_used_after_it_was_asked_for_and_in_its_order() -> None:
    generation, latents = Generation(Strategy(policy=EVERY_OTHER), levels_of(6)), torch.zeros(1, 2)
    with pytest.raises(OmniReuseError, match=r"call computes\(step, latents\)"):
        generation.use(latents, latents)
    with pytest.raises(OmniReuseError, match="step 1 is asked for although step 0 is due"):
        generation.computes(1, latents)


def test_a_host_may_compute_a_step_that_could_be_reused() -> None:
    events: list[Decision] = []
    generation = Generation(Strategy(policy=EVERY_OTHER), levels_of(6), emit=events.append)
    for step in range(2):
        assert generation.computes(step, torch.zeros(1, 2)) is (step == 0)
        generation.use(torch.ones(1, 2), torch.zeros(1, 2))
    assert [event.reused for event in events] == [False, False]


def test_samples_that_are_decided_on_one_by_one_get_what_they_get_alone() -> None:
    strategy = Strategy(policy=ErrorControl(tolerance=0.3), forecaster=Blend())
    alone, events = [request(strategy, 12, 0), request(strategy, 12, 1)], list[Decision]()
    levels = alone[0].levels
    wave, latents = (
        Wave([Generation(strategy, levels, emit=events.append)], 2),
        torch.cat([r.latents[:1] for r in alone]),
    )
    for each in alone:
        each.latents = each.latents[:1]
        while each.is_running:
            each.step_alone()
    ends = [level.coordinate for level in levels[1:]] + [0.0]
    for step, (level, end) in enumerate(zip(levels, ends, strict=True)):
        output = None
        if wave.computes(step, latents):
            output = model(latents, level)
            output[wave.reused_rows] = torch.nan  # the host need not compute these rows
        latents = latents + (end - level.coordinate) * wave.use(output, latents)
    torch.testing.assert_close(latents, torch.cat([each.latents for each in alone]))
    assert len({(event.step, event.reused) for event in events}) > len(levels), "rows differ at some step"
    assert {event.sample for event in events} == {0, 1}


def strategies() -> st.SearchStrategy[Strategy]:
    policies: list[Any] = [EVERY_OTHER, Spread(speedup=3.0), ErrorControl(tolerance=0.15)]
    return st.builds(
        lambda policy, forecaster, target, dtype: Strategy(
            policy=policy,
            forecaster=forecaster,
            prediction_target=None if forecaster.corrects and target != "x0" else target,
            history_dtype=dtype,
        ),
        st.sampled_from(policies),
        st.sampled_from(FORECASTERS),
        st.sampled_from(["x0", "output"]),
        st.sampled_from([None, torch.float64]),
    )


@given(data=st.data())
def test_rows_of_a_batch_get_what_they_would_get_alone(data: st.DataObject) -> None:
    """Requests of different strategies, step counts and shapes join and leave at any wave."""
    count = data.draw(st.integers(2, 6))
    waiting = []
    for seed in range(count):
        strategy, steps = data.draw(strategies()), data.draw(st.integers(2, 9))
        shape = data.draw(st.sampled_from([(1, 6), (2, 3, 4), (5,)]))
        waiting.append((data.draw(st.integers(0, 6)), strategy, steps, seed, shape))
    running: list[tuple[Request, Request]] = []
    for wave in range(20):
        for begin, strategy, steps, seed, shape in waiting:
            if begin == wave:
                alone = run_alone(strategy, steps, seed, shape=shape)
                running.append((request(strategy, steps, seed, shape=shape), alone))
        step_together([joined for joined, _ in running if joined.is_running])
    for joined, alone in running:
        assert len(joined.handed_on) == len(alone.handed_on)
        for ours, theirs in zip(joined.handed_on, alone.handed_on, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_no_row_keeps_the_memory_of_the_others() -> None:
    requests = [request(Strategy(policy=EVERY_OTHER, forecaster=Polynomial(order=1)), 8, seed) for seed in range(4)]
    for _ in range(4):
        step_together(requests)
    for each in requests:
        # Two values of (2, 3, 8) floats, in storages of their own.
        assert each.generation.kept_bytes == 2 * 48 * 4


@pytest.mark.parametrize("strategy", [Strategy(policy=Spread(speedup=2, compute_last=True), forecaster=Blend())])
def test_a_run_that_begins_in_the_middle_is_a_run_of_the_steps_that_are_left(strategy: Strategy) -> None:
    levels = levels_of(28)
    part, alone = Generation(strategy, levels, at=8), Generation(strategy, levels[8:])
    assert (part.total, part.index, part.level, part.coordinate) == (20, 0, levels[8], levels[8].coordinate)
    assert part.schedule == alone.schedule
    choice = part.decide(layout="a")
    assert (choice.reuse, choice.reason) == (False, "first")
    assert Generation(strategy, total=28, at=8).total == 20


def test_the_final_error_of_a_part_is_as_small_as_forecasts_leave_it() -> None:
    levels, at = levels_of(28), 8
    start = torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(0))
    ends = [level.coordinate for level in levels[1:]] + [0.0]

    def run(strategy: Strategy) -> tuple[torch.Tensor, int]:
        latents, computed = start, 0
        generation = Generation(strategy, levels, at=at)
        for level, end in zip(levels[at:], ends[at:], strict=True):
            choice = generation.decide(layout=layout_of(latents))
            if choice.reuse:
                output = generation.carry_out(choice, None, latents)
            else:
                output, computed = generation.carry_out(choice, model(latents, level), latents), computed + 1
            latents = latents + (end - level.coordinate) * output
            generation.advance()
        assert generation.finished
        return latents, computed

    (full, all_steps), (made, half) = (
        run(Strategy(policy=Spread(speedup=speedup), forecaster=Blend())) for speedup in (1, 2)
    )
    assert (all_steps, half) == (20, 10)
    assert float((made - full).abs().sum() / full.abs().sum()) < 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": 28}, "the run has 28 steps"),
        ({"at": -1}, "at must be a step of the run"),
        ({"at": 1.5}, "at must be a step of the run"),
    ],
)
def test_a_run_begins_at_one_of_its_steps(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Generation(Strategy(policy=EVERY_OTHER), levels_of(28), **arguments)
    with pytest.raises(ConfigError, match="the number of steps is not known"):
        Generation(Strategy(policy=EVERY_OTHER), at=3)


def test_the_first_branch_decides_for_a_later_call_of_the_only_sample() -> None:
    # Guidance stacks two rows in one call; a call for one branch more has one row, and no sample to name.
    strategy = Strategy(policy=EVERY_OTHER, region="call", shared_cfg_decision=True)
    wave, latents, reasons = Wave([Generation(strategy, levels_of(6))]), torch.ones(1, 4), []
    for _ in range(3):
        wave.answer(wave.ask(2, "stacked", signal=None), [latents], [latents])
        choice = wave.generations[0].decide("alone", order=1)
        wave.generations[0].carry_out(choice, latents, latents)
        reasons.append(choice.reason)
        for each in wave.generations:
            each.advance()
    assert reasons == ["first", "together", "together"]


def test_a_branch_that_was_not_asked_at_the_step_before_starts_anew() -> None:
    generation = Generation(Strategy(policy=Steps(steps=(0,)), region="call"), levels_of(8))
    latents, reasons = torch.ones(1, 4), []
    for step in range(6):
        if step not in (2, 3):
            choice = generation.decide("branch")
            reasons.append(choice.reason)
            if choice.reuse:
                generation.carry_out(choice, None, latents)
            else:
                generation.carry_out(choice, latents, latents)
        generation.advance()
    assert reasons == ["first", "policy", "paused", "policy"]


def test_events_tell_whether_outputs_kept_their_direction() -> None:
    seen: list[Decision] = []
    strategy = Strategy(policy=EVERY_OTHER, forecaster=Polynomial(order=1), prediction_target="output")
    generation, latents = Generation(strategy, levels_of(7), emit=seen.append), torch.zeros(1, 4)
    for step, x in enumerate([0, 0, 1, 0, 3, 0, 2]):
        generation.use(torch.full((1, 4), float(x)) if generation.computes(step, latents) else None, latents)
    assert [event.heading for event in seen] == [None, None, None, None, pytest.approx(1), None, pytest.approx(-1)]
