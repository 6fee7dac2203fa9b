"""The planner of waves, against the best of all placements."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnireuse.integrations.phases import WavePlanner, linear_cost

COST = linear_cost(per_wave=2.0, per_row=1.0)


def price(planner: WavePlanner, own: list[int], placed: list[int], wave: int) -> float:
    added = sum(COST(planner.rows(wave + step) + 1) - COST(planner.rows(wave + step)) for step in placed)
    return added + 0.05 * sum(abs(a - b) for a, b in zip(own, placed, strict=True))


@given(
    others=st.lists(st.sets(st.integers(0, 9), min_size=1), max_size=3),
    inner=st.sets(st.integers(1, 8), max_size=4),
    wave=st.integers(0, 3),
)
def test_the_placement_is_the_cheapest_within_reach(others: list[set[int]], inner: set[int], wave: int) -> None:
    planner, before = WavePlanner(COST, still=0), WavePlanner(COST, reach=0)
    for other in others:
        before.place(planner.place(other | {0, 9}, 10, wave=0), 10, wave=0)
    own = sorted({0, 9, *inner})
    choices = [[step] if step in (0, 9) else range(max(1, step - 1), min(8, step + 1) + 1) for step in own]
    legal = [list(each) for each in product(*choices) if len(set(each)) == len(each) and list(each) == sorted(each)]
    best = min(price(before, own, each, wave) for each in legal)
    placed = sorted(planner.place(own, 10, wave=wave))
    assert price(before, own, placed, wave) == pytest.approx(best)
    assert (len(placed), placed[0], placed[-1]) == (len(own), 0, 9)


def test_two_requests_out_of_phase_come_to_compute_in_the_same_waves() -> None:
    planner, own = WavePlanner(COST), [0, 2, 4, 6, 8, 10, 11]
    planner.place(own, 12, wave=0)
    second = planner.place(own, 12, wave=1)
    shared = {step + 1 for step in second} & set(own)
    assert len(shared) >= 4 > len({step + 1 for step in own} & set(own))


def test_a_full_wave_attracts_nobody() -> None:
    planner = WavePlanner(linear_cost(per_wave=2.0, most_rows=2))
    planner.place([0, 4, 9], 10, wave=0)
    assert 4 in planner.place([0, 3, 9], 10, wave=0)
    assert 3 in planner.place([0, 3, 9], 10, wave=0)


def test_the_first_quarter_stays() -> None:
    planner, own = WavePlanner(COST), [0, 2, 4, 6, 8, 10, 11]
    planner.place([0, 3, 11], 12, wave=0)
    assert {0, 2} <= planner.place(own, 12, wave=0)


def test_waves_that_are_over_are_dropped() -> None:
    planner = WavePlanner(COST)
    planner.place([0, 3, 6, 9], 10, wave=5)
    planner.finish(8)
    assert [planner.rows(wave) for wave in (5, 8, 11, 14)] == [0, 1, 1, 1]
