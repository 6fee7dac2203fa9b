"""Blend(corrects=…): what a gap's forecasts did to the latents is corrected at the step that ends the gap."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import diffusers
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from omnireuse import Blend, EveryNth, Generation, Polynomial, Steps, Strategy
from omnireuse.errors import ConfigError
from omnireuse.forecasters.gap import Gap
from omnireuse.loop.events import Decision
from omnireuse.noise.parametrization import Parametrization
from omnireuse.noise.schedulers import noise_levels

WITHOUT_VELOCITIES = ("DEISMultistepScheduler",)
COMPUTED = (0, 1, 2, 4, 5, 8, 11)
SHAPE = (2, 3, 8)


def velocity(latents: torch.Tensor, sigma: float) -> torch.Tensor:
    """Of a path that bends."""
    return torch.sin(3 * latents) * (0.3 + sigma) + latents.roll(1, -1) * sigma**2


def of(name: str, **options: Any) -> Any:
    return getattr(diffusers, name)(**options)


def sigmas_of(**options: Any) -> tuple[Any, list[float]]:
    scheduler = FlowMatchEulerDiscreteScheduler(**options)
    scheduler.set_timesteps(12)
    return scheduler, scheduler.sigmas.tolist()


def by_the_book(order: int, sigmas: list[float], latents: torch.Tensor, target: str | None) -> torch.Tensor:
    """The same run with the gap's latents really integrated again, and moved to the result by a part of the way: the
    power ¾ of what is left of the noise, times twice the weight, which is fitted and doubted, up to 1."""
    is_x0 = target == "x0"
    known: list[tuple[float, torch.Tensor]] = []
    shortfall: torch.Tensor | None = None
    over, gap = 1.0, []

    def shaped(weight: torch.Tensor) -> torch.Tensor:
        return weight.reshape(-1, 1, 1)

    def curve(sigma: float, nodes: list[tuple[float, torch.Tensor]]) -> torch.Tensor:
        memory = Polynomial(order=max(len(nodes) - 1, 1)).start()
        for node, value in nodes:
            memory.observe(node, value)
        return memory.predict(sigma)

    for step, (sigma, after) in enumerate(pairwise(sigmas)):
        if step in COMPUTED:
            moving = velocity(latents, sigma)
            moving = latents - sigma * moving if is_x0 else moving
            again = None
            if gap and shortfall is not None:
                again = gap[0][1]
                for place, (then, _) in enumerate(gap):
                    until = gap[place + 1][0] if place + 1 < len(gap) else sigma
                    between = curve(then, [*known[-1 if is_x0 else 0 :], (sigma, moving)])
                    again = again + (until - then) * ((again - between) / then if is_x0 else between)
            if len(known) >= 2:
                last, slope = known[-1][1], curve(sigma, known) - known[-1][1]
                weight = ((moving - last) * slope).flatten(1).sum(1) / slope.square().flatten(1).sum(1)
                shortfall, over = (1 - weight).clamp_min(0), abs(sigma - known[-1][0])
                missed = (moving - curve(sigma, known)).flatten(1).norm(dim=1) / moving.flatten(1).norm(dim=1)
                shortfall = torch.where(missed < 1, shortfall / (2 * (1 - missed)).clamp(max=1), 1e30)
                part = (2 - 2 * shortfall).clamp(0, 1) * (sigma / known[-1][0]) ** 0.75
                again = None if again is None else latents + shaped(part) * (again - latents)
            if again is not None:
                latents = again
            known, gap = [*known, (sigma, moving)][-order - 1 :], []
        else:
            gap.append((sigma, latents))
            moving = known[-1][1]
            if shortfall is not None:
                weight = (1 - shortfall * abs(sigma - known[-1][0]) / over).clamp_min(0)
                moving = moving + shaped(weight) * (curve(sigma, known) - moving)
        latents = latents + (after - sigma) * ((latents - moving) / sigma if is_x0 else moving)
    return latents


def by_the_package(
    strategy: Strategy, scheduler: Any, sigmas: list[float], latents: torch.Tensor
) -> tuple[torch.Tensor, list[Decision]]:
    events: list[Decision] = []
    generation = Generation(strategy, noise_levels(scheduler), emit=events.append)
    for step, (sigma, after) in enumerate(pairwise(sigmas)):
        choice = generation.decide()
        assert choice.reuse == (step not in COMPUTED)
        if choice.reuse:
            output = generation.carry_out(choice, None, latents)
        else:
            output = generation.carry_out(choice, velocity(latents, sigma), latents)
        latents = latents + (after - sigma) * output
        generation.advance()
    return latents, events


@pytest.mark.parametrize("target", [None, "x0"])
@pytest.mark.parametrize("order", [1, 2])
def test_the_gap_is_integrated_again(order: int, target: str | None) -> None:
    scheduler, sigmas = sigmas_of(shift=3.0)
    latents = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    policy = Steps(steps=COMPUTED)
    forecaster = Blend(order=order, corrects=True, holds_misses=True, exponent=1.0)
    strategy = Strategy(policy=policy, forecaster=forecaster, prediction_target=target)
    found, events = by_the_package(strategy, scheduler, sigmas, latents)
    torch.testing.assert_close(found, by_the_book(order, sigmas, latents, target), rtol=1e-4, atol=1e-5)
    plain, _ = by_the_package(
        Strategy(policy=policy, forecaster=Blend(order=order, corrects=False, exponent=1.0)),
        scheduler,
        sigmas,
        latents,
    )
    assert (found - plain).abs().max() > 1e-3
    # x0 is all that the last step leaves.
    assert [event.step for event in events if event.corrected] == ([4, 8] if target == "x0" else [4, 8, 11])


@pytest.mark.parametrize("turns", [True, False])
def test_where_the_line_missed_the_whole_value_the_next_gap_is_held_and_this_one_not_corrected(turns: bool) -> None:
    scheduler, sigmas = sigmas_of()
    policy, lengths = Steps(steps=(0, 1, 2, 4, 11)), {0: 1.0, 1: 1.1, 2: 1.3, 4: 0.1 if turns else 1.7, 11: 2.0}
    strategy = Strategy(policy=policy, forecaster=Blend(holds_misses=True))
    generation = Generation(strategy, noise_levels(scheduler))
    direction, latents = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(3)).unbind(0)
    used: dict[int, torch.Tensor] = {}
    for step, (sigma, after) in enumerate(pairwise(sigmas)):
        choice = generation.decide()
        if choice.reuse:
            used[step] = generation.carry_out(choice, None, latents)
        else:
            used[step] = generation.carry_out(choice, lengths[step] * direction, latents)
        latents = latents + (after - sigma) * used[step]
        generation.advance()
    for step in (4, 5, 6):
        assert torch.equal(used[step], lengths[4] * direction) == turns


@pytest.mark.parametrize(
    "scheduler",
    [
        of("FlowMatchEulerDiscreteScheduler", shift=3.0),
        of("EulerDiscreteScheduler"),
        of("EulerDiscreteScheduler", prediction_type="v_prediction", use_karras_sigmas=True),
        of("DDIMScheduler", clip_sample=False),
        of("CogVideoXDDIMScheduler", prediction_type="v_prediction"),
        of("DDIMScheduler", clip_sample=False, set_alpha_to_one=False, timestep_spacing="trailing"),
        of("DPMSolverMultistepScheduler", solver_order=1),
        of("DPMSolverMultistepScheduler", solver_order=1, prediction_type="flow_prediction", use_flow_sigmas=True),
        of("UniPCMultistepScheduler", solver_order=1, disable_corrector=list(range(8))),
        of("DEISMultistepScheduler", solver_order=1),
    ],
    ids=lambda scheduler: type(scheduler).__name__,
)
def test_the_known_step_is_the_schedulers_of_first_order(scheduler: Any) -> None:
    scheduler.set_timesteps(8)
    generator = torch.Generator().manual_seed(4)
    latents = torch.randn(SHAPE, generator=generator) * float(getattr(scheduler, "init_noise_sigma", 1.0))
    levels = noise_levels(scheduler)
    for level, timestep in zip(levels, scheduler.timesteps, strict=True):
        scheduler.scale_model_input(latents, timestep) if hasattr(scheduler, "scale_model_input") else None
        output = torch.randn(SHAPE, generator=generator)
        x0 = level.value_of(latents, output)
        assert level.step is not None
        after = scheduler.step(output, timestep, latents).prev_sample
        expected = level.step[0] * x0 + level.step[1] * latents
        torch.testing.assert_close(after, expected, rtol=2e-3, atol=2e-3)
        assert (level.velocity_step is None) == (type(scheduler).__name__ in WITHOUT_VELOCITIES)
        if level.velocity_step is not None:
            moving = level.value_of(latents, output, "velocity")
            expected = level.velocity_step[0] * moving + level.velocity_step[1] * latents
            torch.testing.assert_close(after, expected, rtol=2e-3, atol=2e-3)
            algebra = Parametrization("velocity", is_required=True)
            algebra.settle(level, latents, output)
            (again,) = algebra.outputs(level.factors("velocity"), [latents], [moving], [output.dtype])
            torch.testing.assert_close(again, output, rtol=1e-3, atol=1e-3)
        latents = after


def test_the_velocity_of_flow_matching_is_the_output() -> None:
    scheduler, _ = sigmas_of(shift=3.0)
    latents, output = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(5)).unbind(0)
    for level in noise_levels(scheduler):
        torch.testing.assert_close(level.value_of(latents, output, "velocity"), output)


class Kept(FlowMatchEulerDiscreteScheduler):
    pass


class Own(FlowMatchEulerDiscreteScheduler):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        return super().step(*args, **kwargs)


def test_a_subclass_with_a_step_of_its_own_is_not_known() -> None:
    for scheduler, is_known in ((Kept(), True), (Own(), False)):
        scheduler.set_timesteps(4)
        assert [level.step is not None for level in noise_levels(scheduler)] == [is_known] * 4


@pytest.mark.parametrize(
    "scheduler",
    [
        of("FlowMatchEulerDiscreteScheduler", stochastic_sampling=True),
        of("FlowMatchHeunDiscreteScheduler"),
        of("FlowMatchLCMScheduler"),
        of("EulerAncestralDiscreteScheduler"),
        of("HeunDiscreteScheduler"),
        of("LMSDiscreteScheduler"),
        of("DDPMScheduler"),
        of("LCMScheduler"),
        of("PNDMScheduler"),
        of("SASolverScheduler"),
        of("DPMSolverMultistepScheduler", algorithm_type="sde-dpmsolver++"),
    ],
    ids=lambda scheduler: type(scheduler).__name__,
)
def test_other_solvers_are_not_known(scheduler: Any) -> None:
    scheduler.set_timesteps(4)
    assert not any(level.step for level in noise_levels(scheduler))


@pytest.mark.parametrize(
    ("scheduler", "target", "corrects"),
    [
        (of("EulerDiscreteScheduler"), "velocity", True),
        (of("EulerAncestralDiscreteScheduler"), "x0", False),
        (of("LMSDiscreteScheduler"), "x0", False),
        (of("HeunDiscreteScheduler"), "output", False),
        (of("FlowMatchHeunDiscreteScheduler"), "output", False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_run_that_cannot_be_corrected_does_not_wait_for_it(scheduler: Any, target: str, corrects: bool) -> None:
    """Where the model is called twice at a noise level, its outputs are forecast: the solver steps along them."""
    scheduler.set_timesteps(20)
    levels = noise_levels(scheduler)
    policy = Steps(steps=tuple(range(0, len(levels), 2)))
    plan = Strategy(policy=policy, forecaster=Blend()).for_run(len(levels), levels)
    assert (plan.target, plan.forecaster.corrects) == (target, corrects)
    asked = Strategy(policy=policy, forecaster=Blend(), prediction_target="x0").for_run(len(levels), levels)
    assert (asked.target, asked.forecaster.corrects) == ("x0", corrects)
    in_calls = Strategy(policy=policy, forecaster=Blend(), region="call").for_run(len(levels), levels)
    assert in_calls.forecaster.corrects is False


def test_other_solvers_take_outputs_as_they_are() -> None:
    scheduler, sigmas = sigmas_of(stochastic_sampling=True)
    latents = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    policy = Steps(steps=COMPUTED)
    (corrected, events), (plain, _) = (
        by_the_package(
            Strategy(policy=policy, forecaster=Blend(corrects=corrects, holds_misses=True)), scheduler, sigmas, latents
        )
        for corrects in (True, False)
    )
    assert torch.equal(corrected, plain)
    assert not any(event.corrected for event in events)


def test_a_gap_needs_every_steps_arithmetic() -> None:
    assert Gap.between("velocity", [], [(0.5, 0.5)]) is None
    assert Gap.between("velocity", [0.9], [(0.5, 0.5), None]) is None
    assert Gap.between("velocity", [0.9], [None, (0.5, 0.5)]) is None
    assert Gap.between("x0", [0.9], [(0.5, 0.5), (1.0, 0.0)]) is None
    gap = Gap.between("velocity", [0.9, 0.6], [(-0.5, 0.5), (-0.75, 0.25), (-0.25, 0.75)], left=0.5)
    assert gap == Gap(coordinates=(0.9, 0.6), shares=(-0.125, -0.75), gain=-3.0, left=0.5, target="velocity")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"region": "call"}, "region must be step"), ({"prediction_target": "output"}, "prediction_target must be x0")],
)
def test_it_serves_whole_steps(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Strategy(policy=EveryNth(every=2), forecaster=Blend(corrects=True), **options)


@pytest.mark.parametrize(
    ("options", "corrected"),
    [
        ({}, [4, 8, 11]),
        ({"region": "call"}, []),
        ({"prediction_target": "output"}, []),
        ({"prediction_target": "x0"}, [4, 8]),
    ],
)
def test_a_blend_corrects_whole_steps_unless_told_not_to(options: dict[str, Any], corrected: list[int]) -> None:
    scheduler, sigmas = sigmas_of(shift=3.0)
    latents = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    for forecaster, expected in ((Blend(), corrected), (Blend(corrects=False), [])):
        strategy = Strategy(policy=Steps(steps=COMPUTED), forecaster=forecaster, **options)
        _, events = by_the_package(strategy, scheduler, sigmas, latents)
        assert [event.step for event in events if event.corrected] == expected
