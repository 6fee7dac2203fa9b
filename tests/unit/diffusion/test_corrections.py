"""Blend(corrects=True): what a gap's forecasts did to the latents is corrected at the step that ends the gap."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from diffusers import (
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    FlowMatchLCMScheduler,
)

from omnireuse import Blend, FixedSchedule, Polynomial, Strategy
from omnireuse.diffusion.reuse.events import Decision
from omnireuse.diffusion.reuse.forecasters.gap import Gap
from omnireuse.diffusion.reuse.noise import noise_levels
from omnireuse.errors import ConfigError

COMPUTED = (0, 1, 2, 4, 5, 8, 11)
SHAPE = (2, 3, 8)


def velocity(latents: torch.Tensor, sigma: float) -> torch.Tensor:
    """Of a path that bends."""
    return torch.sin(3 * latents) * (0.3 + sigma) + latents.roll(1, -1) * sigma**2


def sigmas_of(**options: Any) -> tuple[Any, list[float]]:
    scheduler = FlowMatchEulerDiscreteScheduler(**options)
    scheduler.set_timesteps(12)
    return scheduler, scheduler.sigmas.tolist()


def by_the_book(order: int, sigmas: list[float], latents: torch.Tensor) -> torch.Tensor:
    """The same run with the gap's latents really integrated again."""
    known: list[tuple[float, torch.Tensor]] = []
    shortfall: torch.Tensor | None = None
    over, gap = 1.0, []

    def norm(value: torch.Tensor) -> torch.Tensor:
        return value.flatten(1).square().sum(1).sqrt()

    def shaped(weight: torch.Tensor) -> torch.Tensor:
        return weight.reshape(-1, 1, 1)

    def curve(sigma: float) -> torch.Tensor:
        memory = Polynomial(order=order).start()
        for node, value in known:
            memory.observe(node, value)
        return memory.predict(sigma)

    for step, (sigma, after) in enumerate(pairwise(sigmas)):
        if step in COMPUTED:
            x0 = latents - sigma * velocity(latents, sigma)
            again = None
            if gap and shortfall is not None:
                (before, last), again = known[-1], gap[0][1]
                for place, (then, _) in enumerate(gap):
                    until = gap[place + 1][0] if place + 1 < len(gap) else sigma
                    between = last + (x0 - last) * (then - before) / (sigma - before)
                    again = again + (until - then) * (again - between) / then
            if len(known) >= 2:
                last, slope = known[-1][1], curve(sigma) - known[-1][1]
                weight = ((x0 - last) * slope).flatten(1).sum(1) / slope.square().flatten(1).sum(1)
                shortfall, over = (1 - weight).clamp_min(0), abs(sigma - known[-1][0])
            if again is not None:
                ratio = norm(x0 - known[-1][1]) / norm(latents - x0)
                trust = ((1 - shortfall - 0.2) / 0.5).clamp(0, 1) / (1 + ratio**2)
                latents = latents + shaped(trust) * (again - latents)
            known, gap = [*known, (sigma, x0)][-order - 1 :], []
        else:
            gap.append((sigma, latents))
            x0 = known[-1][1]
            if shortfall is not None:
                weight = (1 - shortfall * abs(sigma - known[-1][0]) / over).clamp_min(0)
                x0 = x0 + shaped(weight) * (curve(sigma) - x0)
        latents = latents + (after - sigma) * (latents - x0) / sigma
    return latents


def by_the_package(
    strategy: Strategy, scheduler: Any, sigmas: list[float], latents: torch.Tensor
) -> tuple[torch.Tensor, list[Decision]]:
    events: list[Decision] = []
    generation = strategy.start(noise_levels(scheduler), emit=events.append)
    for step, (sigma, after) in enumerate(pairwise(sigmas)):
        choice = generation.decide()
        assert choice.reuse == (step not in COMPUTED)
        if choice.reuse:
            output = generation.predict(choice, latents)
        else:
            output = generation.observe(choice, velocity(latents, sigma), latents)
        latents = latents + (after - sigma) * output
        generation.advance()
    return latents, events


@pytest.mark.parametrize("order", [1, 2])
def test_the_gap_is_integrated_again(order: int) -> None:
    scheduler, sigmas = sigmas_of(shift=3.0)
    latents = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    strategy = Strategy(
        policy=FixedSchedule(steps=COMPUTED), forecaster=Blend(order=order, corrects=True, exponent=1.0)
    )
    found, events = by_the_package(strategy, scheduler, sigmas, latents)
    torch.testing.assert_close(found, by_the_book(order, sigmas, latents), rtol=1e-4, atol=1e-5)
    plain, _ = by_the_package(
        Strategy(policy=FixedSchedule(steps=COMPUTED), forecaster=Blend(order=order, exponent=1.0)),
        scheduler,
        sigmas,
        latents,
    )
    assert (found - plain).abs().max() > 1e-3
    # The last step leaves no noise: nothing can be corrected there.
    assert [event.step for event in events if event.corrected] == [4, 8]


def test_a_straight_path_is_left_alone() -> None:
    """Where forecasts were right there is nothing to correct."""
    scheduler, sigmas = sigmas_of()
    start, slope = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(1)).unbind(0)
    generation = Strategy(policy=FixedSchedule(steps=COMPUTED), forecaster=Blend(corrects=True, exponent=1.0)).start(
        noise_levels(scheduler)
    )
    latents = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2))
    for sigma, after in pairwise(sigmas):
        choice = generation.decide()
        true = (latents - (start + sigma * slope)) / sigma
        output = generation.predict(choice, latents) if choice.reuse else generation.observe(choice, true, latents)
        torch.testing.assert_close(output, true, rtol=1e-3, atol=1e-3)
        latents = latents + (after - sigma) * output
        generation.advance()


def test_only_plain_euler_steps_are_known() -> None:
    class Kept(FlowMatchEulerDiscreteScheduler):
        pass

    class Own(FlowMatchEulerDiscreteScheduler):
        def step(self, *args: Any, **kwargs: Any) -> Any:
            return super().step(*args, **kwargs)

    def ratios(scheduler: Any) -> list[float | None]:
        scheduler.set_timesteps(4)
        return [level.step_ratio for level in noise_levels(scheduler)]

    sigmas = sigmas_of()[0].sigmas
    assert ratios(FlowMatchEulerDiscreteScheduler())[-1] == 0
    assert ratios(Kept()) == ratios(FlowMatchEulerDiscreteScheduler())
    assert len(sigmas) == 13
    for other in (
        Own(),
        FlowMatchEulerDiscreteScheduler(stochastic_sampling=True),
        FlowMatchHeunDiscreteScheduler(),
        FlowMatchLCMScheduler(),
        EulerDiscreteScheduler(),
    ):
        assert not any(ratios(other))


def test_other_solvers_take_outputs_as_they_are() -> None:
    scheduler, sigmas = sigmas_of(stochastic_sampling=True)
    latents = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    policy = FixedSchedule(steps=COMPUTED)
    corrected, events = by_the_package(
        Strategy(policy=policy, forecaster=Blend(corrects=True)), scheduler, sigmas, latents
    )
    plain, _ = by_the_package(Strategy(policy=policy, forecaster=Blend()), scheduler, sigmas, latents)
    assert torch.equal(corrected, plain)
    assert not any(event.corrected for event in events)


def test_a_gap_needs_every_steps_arithmetic() -> None:
    assert Gap.between([], [0.5]) is None
    assert Gap.between([0.9], [0.5, None]) is None
    assert Gap.between([0.9], [None, 0.5]) is None
    assert Gap.between([0.9], [0.5, 0.0]) is None
    gap = Gap.between([0.9, 0.6], [0.5, 0.25, 0.75])
    assert gap == Gap(coordinates=(0.9, 0.6), shares=(0.125, 0.75), gain=3.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"region": "call"}, "region must be step"), ({"quantity": "output"}, "quantity must be x0")],
)
def test_it_serves_x0_of_whole_steps(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Strategy(policy=FixedSchedule(every=2), forecaster=Blend(corrects=True), **options)


def test_corrects_is_a_bool() -> None:
    with pytest.raises(ConfigError, match="corrects must be True or False"):
        Blend(corrects=1)  # type: ignore[arg-type]
