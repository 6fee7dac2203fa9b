"""Plans of schedules: what they expect, beside sums of the outputs themselves, and the best one, beside brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnireuse.planning.path import OutputProducts
from omnireuse.planning.planner import Planner

STEPS, BRANCHES, ELEMENTS = 8, 2, 40
COORDINATES = [1.0 - step / STEPS for step in range(STEPS)]


def full_runs(samples: int, seed: int) -> tuple[np.ndarray, OutputProducts]:
    """Smooth outputs (samples, branches, steps, elements) with their products."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(samples, BRANCHES, STEPS, ELEMENTS)).cumsum(2).cumsum(2)
    products = np.einsum("abij,acdj->abicd", outputs, outputs)
    return outputs, OutputProducts(products=products, effects=rng.uniform(0.5, 1.5, STEPS))


def left(outputs: np.ndarray, nodes: list[int], target: np.ndarray) -> np.ndarray:
    """(samples,) squared norm of what the outputs at these steps leave of a target (samples, elements)."""
    basis = outputs[:, :, nodes].reshape(len(outputs), -1, ELEMENTS)
    stacked = basis.transpose(0, 2, 1).reshape(-1, basis.shape[1])
    weights = np.linalg.lstsq(stacked, target.reshape(-1), rcond=None)[0]
    return np.square(target - np.einsum("w,nwe->ne", weights, basis)).sum(1)


@pytest.mark.parametrize("steps", [(0, 1, 3, 4, 7), (0, 2, 3, 6), (0, 1, 2, 3, 5)])
def test_a_schedule_is_expected_to_leave_what_the_best_weights_leave(steps: tuple[int, ...]) -> None:
    outputs, products = full_runs(samples=3, seed=1)
    growth, disturbance = 1.5, 0.3
    planner = Planner([products], COORDINATES, fewest=4, growth=growth)
    moved = np.einsum("nbse,s->nse", outputs, products.effects)
    error = np.zeros(len(outputs))
    for place, (i, j) in enumerate(zip(steps, (*steps[1:], STEPS), strict=True)):
        known = list(steps[max(place - 2, 0) : place + 1])
        forecast = left(outputs, known, moved[:, i + 1 : j].sum(1))
        if j == STEPS:
            error += forecast
        elif j > i + 1:
            corrected = left(outputs, [*known, j], moved[:, i + 1 : j + 1].sum(1))
            error += np.exp(growth * COORDINATES[j]) * (corrected + disturbance * forecast)
    assert planner.expected(steps) == pytest.approx(-10 * np.log10(error).mean(), abs=1e-3)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000), budget=st.integers(3, 6), growth=st.sampled_from([0.0, 4.0]))
def test_no_schedule_is_expected_to_be_better_than_the_plan(seed: int, budget: int, growth: float) -> None:
    _, products = full_runs(samples=1, seed=seed)
    planner = Planner([products], COORDINATES, fewest=3, growth=growth)
    planned = planner.best(budget)
    every = [(0, *others) for others in combinations(range(1, STEPS), budget - 1)]
    assert planned in every
    assert planner.expected(planned) == pytest.approx(max(map(planner.expected, every)), abs=1e-6)


def test_a_plan_is_made_for_the_mean_psnr_of_all_samples() -> None:
    _, products = full_runs(samples=4, seed=5)
    # One sample whose errors are large would decide alone if squared errors counted.
    products.products[0] *= 1e6
    planner = Planner([products], COORDINATES, fewest=3, growth=0.0)
    every = [(0, *others) for others in combinations(range(1, STEPS), 3)]
    assert planner.expected(planner.best(4)) >= max(map(planner.expected, every)) - 0.5


def test_samples_of_runs_that_cannot_tell_branches_apart_are_joined_as_one_branch() -> None:
    outputs, apart = full_runs(samples=2, seed=3)
    summed = outputs.sum(1, keepdims=True)
    together = OutputProducts(products=np.einsum("abij,acdj->abicd", summed, summed), effects=apart.effects)
    joined = OutputProducts.joined([apart, together])
    np.testing.assert_allclose(joined.products[:2], joined.products[2:])
