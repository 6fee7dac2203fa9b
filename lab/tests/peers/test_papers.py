"""The methods that are written from their papers: their formulas, on values that can be computed by hand."""

from __future__ import annotations

import inspect
import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

import omnireuse
from omnireuse.testing import check_policy
from omnireuse_lab.peers import PEERS
from omnireuse_lab.peers.bud_cache import annealed
from omnireuse_lab.peers.calibrating import best_path
from omnireuse_lab.peers.l2p import learnt_weights
from omnireuse_lab.peers.lemica import worst_first
from omnireuse_lab.peers.mean_cache import MeanVelocity, estimate
from omnireuse_lab.peers.optimal_steps import closest_timesteps
from omnireuse_lab.peers.recache import learnt_schedules
from omnireuse_lab.peers.sen_cache import Sensitivities, Sensitivity
from omnireuse_lab.peers.speca import Draft
from omnireuse_lab.peers.spectrum import Chebyshev, chebyshev_weights, growing_windows
from omnireuse_lab.peers.tc_pade import pade, staged

SIGMAS = (1.0, 0.9, 0.75, 0.6, 0.3, 0.0)


# -- Spectrum ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("growth", "computed"), [(0.75, 14), (3.0, 10)])
def test_spectrum_computes_as_many_steps_as_its_authors_say(growth: float, computed: int) -> None:
    # Remarks of the public code's README, for 50 steps and a first window of 2.
    assert len(growing_windows(50, growth=growth)) == computed


def test_spectrum_without_ridge_is_exact_on_polynomials_of_its_degree() -> None:
    def path(at: float) -> float:
        return 1 + 2 * at - at**2 / 5 + at**4 / 700

    nodes = [0, 1, 3, 4, 8, 11]
    weights = chebyshev_weights(nodes, 14, span=28, degree=4, ridge=0.0, share=1.0)
    assert np.dot(weights, [path(node) for node in nodes]) == pytest.approx(path(14))


def test_spectrum_forecasts_from_all_values() -> None:
    memory = Chebyshev(span=28, ridge=1e-9).start()
    for step in (0, 1, 2, 3, 4, 6, 9):
        memory.observe(step, torch.full((1, 3), float(step**3), dtype=torch.float64))
    assert memory.predict(11) == pytest.approx(torch.full((1, 3), 1331.0), abs=0.5)


# -- MeanCache --------------------------------------------------------------------------------------------------------


def test_mean_cache_estimates_from_the_mean_of_the_last_steps() -> None:
    # Velocities 5 and 4 over even steps: their mean is 4.5, so J = (5 − 4.5) / −1, and û = 4 − J · −0.5.
    even = [torch.tensor([5.0]), torch.tensor([4.0])]
    assert estimate(even, (1.0, 0.5, 0.0, -0.5), 2).item() == 3.75


def test_mean_cache_estimates_go_on_from_estimates() -> None:
    memory = MeanVelocity(sigmas=SIGMAS, spans=(1, 1, 2, 2, 1)).start()
    first, second = torch.tensor([1.0]), torch.tensor([2.0])
    memory.observe(0, first)
    memory.observe(1, second)
    third = estimate([first, second], SIGMAS[:4], 2)
    fourth = estimate([first, second, third], SIGMAS[:5], 2)
    assert torch.equal(memory.predict(2), third)
    assert torch.equal(memory.predict(3), fourth)
    assert torch.equal(memory.predict(2), third), "an earlier step can be asked for again"
    memory.observe(3, torch.tensor([9.0]))
    assert memory.predict(4).item() == 9.0, "a span of one holds"


def _paths(steps: int, count: int) -> list[tuple[int, ...]]:
    return [(0, *inner, steps - 1) for inner in combinations(range(1, steps - 1), count - 2)]


def _costs(steps: int) -> dict[tuple[int, int], float]:
    drawn = np.random.default_rng(3).random((steps, steps))
    return {(a, b): float(drawn[a, b]) for a in range(steps) for b in range(a + 1, steps)}


def test_mean_cache_takes_the_cheapest_path() -> None:
    costs = _costs(8)
    best = min(_paths(8, 4), key=lambda path: sum(costs[edge] for edge in pairwise(path)))
    assert best_path(costs, 8, 4, sum) == best


# -- LeMiCa, BudCache, ReCache ----------------------------------------------------------------------------------------


def test_lemica_makes_the_worst_interval_least_then_the_second_worst() -> None:
    costs = {edge: round(cost, 1) for edge, cost in _costs(8).items()}  # with ties

    def sorted_costs(path: tuple[int, ...]) -> list[float]:
        return sorted((costs[edge] for edge in pairwise(path)), reverse=True)

    found = best_path(costs, 8, 5, worst_first)
    assert sorted_costs(found) == min(map(sorted_costs, _paths(8, 5)))


def test_bud_cache_finds_the_best_schedule_and_keeps_the_budget() -> None:
    wanted, tried = {0, 1, 3, 11}, []

    def error(steps: tuple[int, ...]) -> float:
        tried.append(steps)
        return 1.0 + sum(min(abs(step - other) for other in wanted) for step in steps)

    assert annealed(error, 12, 4) == (0, 1, 3, 11)
    assert {len(set(steps)) for steps in tried} == {4}
    assert all(steps[0] == 0 and steps[-1] == 11 for steps in tried)


def test_recache_learns_which_steps_matter() -> None:
    found = learnt_schedules(lambda steps: 0.01 + sum(steps), 8, [4, 5], updates=120)
    assert found == {4: (0, 1, 2, 7), 5: (0, 1, 2, 3, 7)}


# -- L2P --------------------------------------------------------------------------------------------------------------


def test_l2p_learns_to_extrapolate() -> None:
    start, slope = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))
    path = torch.stack([start + slope * step / 8 for step in range(8)])
    weights = learnt_weights([path])
    assert [len(row) for row in weights] == list(range(8))
    held = (path[7] - path[6]).norm()
    forecast = sum(weight * value for weight, value in zip(weights[7], path, strict=False))
    assert (path[7] - forecast).norm() < 0.1 * held


# -- SenCache ---------------------------------------------------------------------------------------------------------


def _sensitivity(threshold: float = 0.5, most: int = 2) -> Sensitivity:
    sensitivities = Sensitivities(to_latents=(2.0,) * 9, to_noise=(1.0,) * 9)
    return Sensitivity(sensitivities=sensitivities, threshold=threshold, most=most)


def test_sen_cache_adds_the_changes_that_it_expects() -> None:
    policy = _sensitivity()

    def reuses(index: int, drift: float, noise: float, reused: int = 0) -> bool:
        view = omnireuse.StepView(index=index, total=10, drift=drift, noise=noise)
        return policy.wants_reuse((3, 0.8, reused), view)

    assert reuses(5, 0.14, 0.6)  # 2 · 0.14 + 0.2 < 0.5
    assert not reuses(5, 0.16, 0.6)
    assert not reuses(5, 0.14, 0.55)
    assert not reuses(5, 0.14, 0.6, reused=2)
    assert not reuses(1, 0.14, 0.6), "the first fifth has a tighter threshold"


def test_sen_cache_keeps_the_contract_of_policies() -> None:
    check_policy(_sensitivity())


# -- TC-Padé ----------------------------------------------------------------------------------------------------------


def _pade(before: float, last: float) -> float:
    """Element by element, as the public code has it."""
    magnitude = (abs(last) + abs(before)) / 2
    steady = math.exp(-5 * abs(last - before) / (magnitude + 1e-7))
    rational = (2 * steady * last - steady * before) / (1 - 0.1 * steady)
    mean, most = 0.6 * last + 0.4 * before, max(abs(last - before) / 2, magnitude / 10)
    held = min(max(rational, mean - most), mean + most)
    share = 0.7 * steady + 0.3
    return share * held + (1 - share) * mean


def test_tc_pade_takes_each_element_by_itself() -> None:
    before, last = torch.randn(2, 4, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    last[:, :25] = before[:, :25] * 1.05  # half of them hardly change
    expected = [_pade(a, b) for a, b in zip(before.ravel().tolist(), last.ravel().tolist(), strict=True)]
    assert pade(before, last).ravel().tolist() == pytest.approx(expected)


def test_tc_pade_goes_by_stages() -> None:
    before, last = torch.tensor([1.0, 4.0]), torch.tensor([2.0, 3.0])
    assert torch.allclose(staged(before, last, 0.3), 0.9 * last + 0.1 * before)
    assert torch.equal(staged(before, last, 0.31), pade(before, last))
    assert torch.equal(staged(before, last, 0.8), pade(before, last))
    assert torch.allclose(staged(before, last, 0.81), pade(before, last) + 0.3 * (last - before))


# -- SpeCa ------------------------------------------------------------------------------------------------------------


def test_speca_drafts_a_line_at_any_spacing() -> None:
    draft = Draft()
    for step, gap in ((0, 1), (1, 1), (4, 3)):
        draft.observe(torch.tensor([2.0 + 3.0 * step]), gap, 1)
    assert draft.after(5).item() == 29.0
    assert len(draft.differences) == 2


# -- OSS --------------------------------------------------------------------------------------------------------------


def _euler(steps: tuple[int, ...], sigmas: tuple[float, ...], start: float = 2.0) -> float:
    """Where dz/dσ = z gets from σ₀ to the last σ, evaluated at these steps."""
    for at, end in pairwise((*steps, len(sigmas) - 1)):
        start += start * (sigmas[end] - sigmas[at])
    return start


def _closest(sigmas: tuple[float, ...], most: int) -> dict[int, tuple[int, ...]]:
    steps = len(sigmas) - 1
    fine = [_euler(tuple(range(count)), sigmas[: count + 1]) for count in range(1, steps + 1)]
    latents = torch.tensor([2.0, *fine], dtype=torch.float64)[:, None]
    return closest_timesteps(latents, latents[:-1], sigmas, lambda before: before, most)


def test_oss_finds_what_brute_force_finds() -> None:
    # Euler's errors on an exponential have one sign, so the best way to a timestep is part of the best way past it.
    sigmas = (1.0, 0.97, 0.9, 0.72, 0.6, 0.3, 0.22, 0.0)
    full = _euler(tuple(range(7)), sigmas)
    for count, found in _closest(sigmas, 7).items():
        every = [(0, *others) for others in combinations(range(1, 7), count - 1)]
        assert found == min(every, key=lambda steps: abs(_euler(steps, sigmas) - full))


@pytest.mark.parametrize("key", PEERS)
def test_a_peer_s_figures_depend_on_its_own_file(key: str) -> None:
    module = inspect.getmodule(PEERS[key].grid)
    assert module is not None
    assert PEERS[key] in vars(module).values()
