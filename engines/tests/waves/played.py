"""An engine of continuous batching that is played: its requests, its waves, and what a transformer would compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from omnireuse import Blend, EasyCache, ErrorControl, Spread, Strategy
from omnireuse.loop.events import Choice
from omnireuse.loop.generation import Generation
from omnireuse.tuning.loops import OFF, RequestPlan
from omnireuse_engines.settings import KEY
from omnireuse_engines.waves import Waves

__all__ = ["PLANS", "Engine", "State", "break_for", "request"]

PLANS = {
    "half": RequestPlan(Strategy(policy=Spread(speedup=2), forecaster=Blend()), "half"),
    "third": RequestPlan(Strategy(policy=Spread(speedup=3)), "third"),
    "measured": RequestPlan(Strategy(policy=ErrorControl(tolerance=0.4), forecaster=Blend(order=2)), "measured"),
    "watched": RequestPlan(Strategy(policy=EasyCache(threshold=0.5), forecaster=Blend()), "watched"),
    "off": OFF,
}


@dataclass
class State:
    """What the engine keeps of a request, as far as waves look at it."""

    name: str
    plan: str
    scheduler: Any
    latents: torch.Tensor
    timesteps: torch.Tensor
    sampling: Any = None
    begin: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    stage_durations: dict[str, float] = field(default_factory=dict)
    step_index: int = 0
    chunk_index: int = 0
    prompt: Any = None

    @property
    def request_id(self) -> str:
        return self.name

    @property
    def total_steps(self) -> int:
        return len(self.timesteps)

    def noise(self, after: int = 0) -> float:
        return float(self.scheduler.sigmas[self.begin + self.step_index + after])


def request(name: str, plan: str, steps: int, seed: int, *, begin: int = 0, reuse: object = None) -> State:
    """A request of so many steps.

    Args:
        begin: of the scheduler's steps, the first that the request makes, as image-to-image does.
        reuse: what its extra arguments say.
    """
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(begin + steps)
    if begin:
        scheduler.set_begin_index(begin)
    latents = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(seed))
    sampling = SimpleNamespace(extra_args={} if reuse is None else {"omnireuse": reuse}, num_inference_steps=steps)
    return State(name, plan, scheduler, latents, scheduler.timesteps[begin:], sampling, begin)


class Engine:
    """Steps a set of requests; keeps count of the rows that the transformer sees.

    Args:
        plan: what a request follows; by default what its name of a plan says.
        smooth: whether the transformer follows a smooth field, so that errors stay as small as forecasts leave them.
        device: that the latents are on; None for the host.
        tuner: of its requests.
    """

    def __init__(
        self,
        plan: Callable[[State], RequestPlan] | None = None,
        *,
        smooth: bool = False,
        device: torch.device | None = None,
        tuner: Any = None,
    ) -> None:
        self.rows: list[int] = []
        self.smooth, self.device = smooth, device
        self.waves = Waves(self.denoise, list, plan or (lambda state: PLANS[state.plan]), tuner)
        self.fails = False

    def denoise(self, batch: Sequence[State], *, states: Sequence[State], **_: Any) -> torch.Tensor:
        assert [each.name for each in batch] == [each.name for each in states]
        self.rows.append(len(states))
        if self.fails:
            raise MemoryError("the transformer ran out of memory")
        latents = torch.cat([state.latents for state in states])
        noise = torch.tensor([state.noise() for state in states], device=self.device)[:, None, None]
        if self.smooth:
            return torch.sin(latents + noise) * (0.5 + noise)
        return torch.sin(latents * 2) + noise * latents.mean(-1, keepdim=True)

    def wave(self, states: Sequence[State]) -> None:
        outputs = self.waves.denoise_step(list(states), states=states)
        for state, output in zip(states, outputs.split(1), strict=True):
            state.latents = state.latents + (state.noise(1) - state.noise()) * output
            state.step_index += 1

    def alone(self, state: State) -> torch.Tensor:
        while state.step_index < state.total_steps:
            self.wave([state])
        return state.latents


def break_for(cursed: State, monkeypatch: pytest.MonkeyPatch, *, reuse: bool, since: int) -> None:
    """The end of the work on one request raises from a step on, after the rows before it are done."""
    conclude = Generation.conclude

    def run(self: Generation, choice: Choice, *rest: Any, **named: Any) -> None:
        is_cursed = self is cursed.extra[KEY].generation
        if is_cursed and choice.reuse is reuse and cursed.step_index >= since:
            raise RuntimeError("one row is bad")
        conclude(self, choice, *rest, **named)

    monkeypatch.setattr(Generation, "conclude", run)
