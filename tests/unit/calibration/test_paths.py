"""The plan: what forecasts over gaps would cost, and the cheapest path, beside brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omnireuse import Blend, Hold, Polynomial
from omnireuse.diffusion.calibration.distances import Distances
from omnireuse.diffusion.calibration.initial import FORECASTERS as NAMES
from omnireuse.diffusion.calibration.initial import best_paths, gap_costs
from omnireuse.diffusion.calibration.observer import Observations
from omnireuse.errors import StateError

FORECASTERS = {"hold": Hold(), "blend": Blend(), "polynomial": Polynomial(order=1)}


def recorded(steps: int, samples: int, seed: int) -> tuple[Distances, torch.Tensor]:
    values = torch.randn(steps, samples, 5, generator=torch.Generator().manual_seed(seed)).cumsum(0).double()
    return Distances.between([1.0 - index / steps for index in range(steps)], list(values)), values


@pytest.mark.parametrize("forecaster", NAMES)
def test_a_path_costs_what_its_forecaster_gets_wrong_on_the_recorded_values(forecaster: str) -> None:
    steps, path = 9, (0, 1, 3, 6, 8)
    distances, values = recorded(steps, samples=1, seed=3)
    costs = gap_costs(distances, forecaster)
    before = (0, 0, *path)
    planned = sum(costs[before[n : n + 4]] for n in range(len(path) - 1))
    memory = FORECASTERS[forecaster].start()
    off = 0.0
    for index, value in enumerate(values):
        at = 1.0 - index / steps
        if index in path:
            memory.observe(at, value)
        else:
            error = float((memory.predict(at) - value).norm() / values[-1].norm())
            off += error * (1 / steps) / at
    assert planned == pytest.approx(off, rel=1e-6)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), count=st.integers(2, 6), forecaster=st.sampled_from(NAMES))
def test_no_path_is_cheaper_than_the_planned_one(seed: int, count: int, forecaster: str) -> None:
    steps = 7
    distances, _ = recorded(steps, samples=2, seed=seed)
    costs = gap_costs(distances, forecaster)

    def price(path: tuple[int, ...]) -> float:
        before = (0, 0, *path)
        return float(sum(costs[before[n : n + 4]] for n in range(len(path) - 1)))

    planned = best_paths(costs, steps)[count]
    every = [(0, *inner, steps - 1) for inner in combinations(range(1, steps - 1), count - 2)]
    assert len(planned) == count
    assert planned[0] == 0
    assert planned[-1] == steps - 1
    assert price(planned) == pytest.approx(min(map(price, every)))


def test_only_whole_runs_count() -> None:
    seen = Observations(keeps_values=True)
    seen.begin_run()
    seen.note_value(1.0, torch.ones(1, 3))
    with pytest.raises(StateError, match="over all its 4 steps"):
        seen.take_distances(4)


def test_distances_are_those_of_the_values_as_a_share_of_the_last() -> None:
    distances, values = recorded(4, samples=2, seed=0)
    flat = values.transpose(0, 1)
    expected = torch.cdist(flat, flat).square() / flat[:, -1:].square().sum(-1, keepdim=True)
    np.testing.assert_allclose(distances.squared, expected.numpy(), atol=1e-9)
