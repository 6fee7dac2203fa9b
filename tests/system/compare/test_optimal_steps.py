"""OSS on the reference images: its search runs the pipeline on latents of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from omnireuse_lab.compare.methods.baselines import stronger_solver
from omnireuse_lab.compare.run import compare
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.peers import PEERS, optimal_steps

Make = Callable[..., Workload]


def calibrated(images: Make, **given: Any) -> Workload:
    return replace(images(prompts=1, **given), calibration=("a blue square", "a green star"))


@pytest.mark.slow
def test_the_search_gets_the_velocities_of_the_latents_that_it_asks_about(
    images: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, asked = optimal_steps.closest_timesteps, []

    def spy(fine: torch.Tensor, velocities: torch.Tensor, sigmas: Any, evaluate: Any, most: int) -> Any:
        assert fine.shape == (7, 2, *fine.shape[2:])
        assert velocities.shape == (6, *fine.shape[1:])
        moved = [fine[0], *(v * (b - a) for v, a, b in zip(velocities, sigmas[:-1], sigmas[1:], strict=True))]
        torch.testing.assert_close(torch.stack(moved).cumsum(0), fine, rtol=1e-4, atol=1e-4)
        # Those of the full run have the full run's velocities, and others have others.
        torch.testing.assert_close(evaluate(fine[:-1]), velocities, rtol=1e-4, atol=1e-4)
        assert (evaluate(1.1 * fine[:-1]) - velocities)[1:].abs().max() > 0.01
        asked.append(most)
        return inner(fine, velocities, sigmas, evaluate, most)

    monkeypatch.setattr(optimal_steps, "closest_timesteps", spy)
    case = compare(calibrated(images), [PEERS["optimal-steps"]])
    assert asked == [4]
    assert [point.error for point in case.points] == [None] * len(case.points)
    assert [point.computed_steps for point in case.points] == [4.0, 3.0]


def test_a_solver_that_is_not_euler_s_is_refused(images: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = calibrated(images)
    other = stronger_solver(workload.pipeline.scheduler, "UniPCMultistepScheduler")
    monkeypatch.setattr(workload.pipeline, "scheduler", other)
    (point, *_) = compare(workload, [PEERS["optimal-steps"]]).points
    assert "put that scheduler in" in (point.error or "")
