"""The runs of a calibration on a graph's sampler, on a ComfyUI that is played."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omnireuse.calibration.runs import full_run
from omnireuse.engines.comfyui.graph import Graph
from omnireuse.engines.comfyui.runner import GraphRunner
from omnireuse.errors import StateError
from omnireuse.tuning.trials import MeasuredCall, Trial
from tests.unit.integrations.played_comfyui import SIGMAS, STEPS, Guider, Model, Sampler

COMPUTED = (0, 1, 2, 3, 5, 8, 11, 14, 17, 19)


def runner_on(model: Model) -> GraphRunner:
    def noise(seed: int) -> torch.Tensor:
        return torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(seed))

    def sample(patched: Any, positive: torch.Tensor, _: Any, seed: int) -> torch.Tensor:
        return Guider(patched, positive).sample(noise(seed), Sampler())

    graph = Graph(
        model=model,
        positive=[0.3 * noise(100 + place) for place in range(2)],
        negative=[None],
        sampler=Sampler(),
        sigmas=SIGMAS.tolist(),
        cfg=3.0,
        latent=torch.zeros(1, 2, 4, 4),
        seed=0,
        sample=sample,
        decode=lambda latents: np.asarray(latents[0, :1].permute(1, 2, 0).numpy() / 40 + 0.5),
    )
    return GraphRunner(graph, [0, 1], lambda _: None)


def test_a_full_run_is_recorded_and_leads_a_fit_whose_first_calls_are_known() -> None:
    model = Model()
    runner = runner_on(model)
    run = full_run(runner, range(1), record=True)
    assert run.full is not None
    assert len(run.seen.coordinates) == STEPS
    assert len(run.full.path.shares) == 2, "guidance has two parts"
    np.testing.assert_array_equal(run.pictures[0], full_run(runner, range(1)).pictures[0])
    before = model.calls
    trial = Trial.of_fit(COMPUTED, STEPS)
    work = trial.lead([MeasuredCall(replay=range(1), full=run.full)], runner, STEPS, [run.pictures])
    # The calls of the first steps are known of the full run.
    assert model.calls - before == len(COMPUTED) - 4
    assert work == pytest.approx((len(COMPUTED) - 4) / STEPS)
    assert trial.closeness[0] > 30
    assert model.wrappers == {}


def test_a_full_run_that_is_not_finite_names_its_prompt_and_step() -> None:
    model = Model()
    runner = runner_on(model)
    full_run(runner, range(1), record=True)

    def spoil() -> None:
        for each in model.model.diffusion_model.parameters():
            each.data.fill_(float("nan"))

    model.on_call = spoil
    with pytest.raises(StateError, match="'prompt 2' is not finite from step 0 on"):
        full_run(runner, range(1, 2), record=True)
