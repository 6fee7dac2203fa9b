"""OSS: the same solver on the subset of its own timesteps whose latents stay closest to those of the full run.

Source: "Optimal Stepsize for Diffusion Sampling", arXiv 2503.21774, and its public code
(https://github.com/bebebe666/OptimalSteps): for each number of evaluations and each timestep the latents that get there
closest to the full run, by dynamic programming; a further evaluation goes on from each of them. What is worse on the
way and better at the end is missed. Ours: one schedule for all prompts, by the mean of their squared errors, while the
code searches one for each image; it begins at the first timestep, while the code may hand pure noise to a later one; no
calibration of amplitudes, which changes the latents. The steps between two chosen ones hold the velocity, which is
Euler's method on those chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import omnireuse
from omnireuse.errors import UnsupportedModelError
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, lazily, reuse
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.peers.calibrating import HELD, budgets, full_runs

__all__ = ["OPTIMAL_STEPS", "closest_timesteps"]

PROMPTS = 8
EULER = "FlowMatchEulerDiscreteScheduler"


def closest_timesteps(
    fine: torch.Tensor,
    velocities: torch.Tensor,
    sigmas: Sequence[float],
    evaluate: Callable[[torch.Tensor], torch.Tensor],
    most: int,
) -> dict[int, tuple[int, ...]]:
    """For each number of evaluations up to `most` the steps at which they are made; the first is among them.

    Args:
        fine: latents of full runs before each step and at the end, shape (steps + 1, prompts, …).
        velocities: of the full runs at each step, shape (steps, prompts, …).
        sigmas: noise levels, steps + 1 of them.
        evaluate: from latents before each step, shape (steps, prompts, …), to their velocities.
    """
    steps, found = len(velocities), dict[int, tuple[int, ...]]()
    reached: dict[int, tuple[torch.Tensor, tuple[int, ...]]] = {0: (fine[0], ())}
    for count in range(1, most + 1):
        if count > 1:
            velocities = evaluate(torch.stack([reached[at][0] if at in reached else fine[at] for at in range(steps)]))
        further = {}
        for end in range(count, steps + 1):
            ways = [
                (latents + velocities[at] * (sigmas[end] - sigmas[at]), (*path, at))
                for at, (latents, path) in reached.items()
                if at < end
            ]
            further[end] = min(ways, key=lambda way: float((way[0] - fine[end]).square().mean()))
        found[count] = further.pop(steps)[1]
        reached = further
    return found


def _search(work: Workload) -> dict[int, tuple[int, ...]]:
    scheduler = work.pipeline.scheduler
    is_euler = EULER in {each.__name__ for each in type(scheduler).__mro__}
    if not is_euler or scheduler.config.stochastic_sampling:
        raise UnsupportedModelError(
            f"OSS jumps between the timesteps of {EULER} without noise of its own, and the pipeline has a "
            f"{type(scheduler).__name__}; put that scheduler in"
        )
    if not work.accepts("callback_on_step_end"):
        raise UnsupportedModelError(f"OSS needs callback_on_step_end, and {type(work.pipeline).__name__} takes none")
    latents: list[torch.Tensor] = []

    def read(_: Any, __: int, ___: Any, given: dict[str, Any]) -> dict[str, Any]:
        latents.append(given["latents"])
        return given

    (velocities, *_), sigmas = full_runs(work, "step", callback_on_step_end=read)
    after = torch.stack(latents).float()
    fine = torch.cat([after[:1] - velocities[:1] * (sigmas[1] - sigmas[0]), after])

    def evaluate(before: torch.Tensor) -> torch.Tensor:
        def place(_: Any, index: int, __: Any, given: dict[str, Any]) -> dict[str, Any]:
            if index + 1 < len(before):
                given["latents"] = before[index + 1].to(given["latents"].dtype)
            return given

        return full_runs(work, "step", callback_on_step_end=place)[0][0]

    return closest_timesteps(fine, velocities, sigmas, evaluate, max(budgets(work.steps)))


def _options(found: dict[int, tuple[int, ...]], count: int) -> dict[str, Any]:
    return {"policy": omnireuse.Steps(steps=found[count], compute_last=False), **HELD}


def _grid(subject: Subject) -> Iterator[Setting]:
    make = lazily(subject, PROMPTS, _search, _options)
    for count in budgets(subject.workload.steps):
        yield reuse("OSS", make(count), num_timesteps=count, prompts=PROMPTS)


OPTIMAL_STEPS = Method(key="optimal-steps", name="OSS, calibrated", family="baseline", grid=_grid)
