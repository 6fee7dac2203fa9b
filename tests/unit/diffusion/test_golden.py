"""What each host does with each choice, step by step, as it was when golden.json was written.

After a change that is meant: ``pytest tests/unit/diffusion/test_golden.py --write-golden``, and read the difference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import Decision, EasyCache, ErrorControl, Generation, Never, Strategy, noise_levels
from tests.helpers.tiny import TINY

FILE = Path(__file__).with_name("golden.json")
STEPS = 24
MEASURED: dict[str, Any] = {"policy": ErrorControl(tolerance=0.3), "forecaster": "blend"}
ON_PIPELINES: dict[str, dict[str, Any]] = {
    "default": {"tune": False},
    "tuned": {"tune": True},
    "never": {"policy": "never"},
    "error_control": MEASURED,
}
TEA_CACHE = {"backend": "tea_cache", "rel_l1_thresh": 0.6, "coefficients": (0, 0, 0, 0.3, 0)}
CHOICES: dict[str, dict[str, Any]] = {
    "diffusers pipeline": {**ON_PIPELINES, "tea_cache": TEA_CACHE},
    "own loop with a call": ON_PIPELINES,
    "own loop": {
        "default": {"strategy": Strategy.default()},
        "never": {"strategy": Strategy(policy=Never())},
        "easy_cache": {"strategy": Strategy(policy=EasyCache(threshold=0.05))},
        "error_control": {"strategy": Strategy(**{**MEASURED, "forecaster": omnireuse.Blend()})},
    },
}


def velocity(latents: torch.Tensor, noise: float) -> torch.Tensor:
    return (latents - torch.tanh(latents.mean(-1, keepdim=True))) / max(noise, 1e-1)


class Loop:
    """A loop of one's own; each seed has latents of its own."""

    def __init__(self) -> None:
        self.transformer, self.scheduler = torch.nn.Module(), FlowMatchEulerDiscreteScheduler()
        self.transformer.forward = velocity

    def run(self, *, seed: int, steps: int) -> torch.Tensor:
        return self(seed=seed, steps=steps)

    @property
    def pipe(self) -> Loop:
        return self

    def __call__(self, *, seed: int, steps: int) -> torch.Tensor:
        self.scheduler.set_timesteps(steps)
        latents = torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(seed))
        for timestep in self.scheduler.timesteps:
            output = self.transformer(latents, float(timestep) / 1000)
            latents = self.scheduler.step(output, timestep, latents, return_dict=False)[0]
        return latents


def on_pipeline(tiny: Any, **choice: Any) -> dict[str, Any]:
    """The trace of a run; of a tuned one, of the first run after those that are measured."""
    with omnireuse.enable(tiny.pipe, **choice) as handle:
        latents = tiny.run(steps=STEPS, seed=0)
        while handle.tuning.state == "measuring":
            tiny.run(steps=STEPS, seed=1)
        if handle.tuning.state == "ready":
            latents = tiny.run(steps=STEPS, seed=0)
    return trace([event for event in handle.events if event.run == handle.events[-1].run], handle.strategy, latents)


def in_own_loop(strategy: Strategy) -> dict[str, Any]:
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS)
    latents = torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(0))
    events: list[Decision] = []
    generation = Generation(strategy, noise_levels(scheduler), emit=events.append)
    for step, timestep in enumerate(scheduler.timesteps):
        output = velocity(latents, float(timestep) / 1000) if generation.computes(step, latents) else None
        latents = scheduler.step(generation.use(output, latents), timestep, latents, return_dict=False)[0]
    generation.finish()
    return trace(events, strategy, latents)


def trace(events: list[Decision], strategy: Strategy, latents: torch.Tensor) -> dict[str, Any]:
    """Per branch the steps with their decision and reason, what is forecast, and a digest of the latents."""
    steps: dict[str, dict[str, list[int]]] = {}
    for event in events:
        done = f"{'reused' if event.reused else 'computed'} {event.reason}{' corrected' * event.corrected}"
        steps.setdefault(event.branch, {}).setdefault(done, []).append(event.step)
    digest = [latents.abs().mean(), *latents.flatten()[:: latents.numel() // 7][:7]]
    return {
        "steps": {branch: {done: ranges(at) for done, at in of.items()} for branch, of in steps.items()},
        "target": strategy.chosen_target,
        "latents": " ".join(f"{float(value):.4f}" for value in digest),
    }


def ranges(numbers: list[int]) -> str:
    """0, 1, 2, 5 -> "0-2 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


HOSTS: dict[str, Callable[..., dict[str, Any]]] = {
    "diffusers pipeline": lambda **choice: on_pipeline(TINY["flux"](), **choice),
    "own loop with a call": lambda **choice: on_pipeline(Loop(), **choice),
    "own loop": in_own_loop,
}


@pytest.mark.parametrize(("host", "name"), [(host, name) for host, of in CHOICES.items() for name in of])
def test_each_step_is_as_it_was(
    host: str, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMNIREUSE_TUNE")
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock
    found = HOSTS[host](**CHOICES[host][name])
    golden = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    if request.config.getoption("--write-golden"):
        golden.setdefault(host, {})[name] = found
        FILE.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n", "utf-8")
        return
    expected = golden[host][name]
    assert found["steps"] == expected["steps"]
    assert found["target"] == expected["target"]
    latents, before = ([float(value) for value in each["latents"].split()] for each in (found, expected))
    assert latents == pytest.approx(before, rel=1e-3, abs=1e-3)
