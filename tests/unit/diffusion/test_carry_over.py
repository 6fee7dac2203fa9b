"""A schedule made for one run, carried over to another by noise level."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnireuse import FixedSchedule
from omnireuse.errors import ConfigError


def noises(total: int, shift: float = 1.0) -> tuple[float, ...]:
    """A flow-matching schedule: s evenly from 1 to 1/total, shifted to shift·s / (1 + (shift − 1)·s)."""
    even = [1 - index / total for index in range(total)]
    return tuple(shift * s / (1 + (shift - 1) * s) for s in even)


schedules = st.sets(st.integers(1, 26), min_size=1, max_size=20).map(lambda inner: (0, *sorted(inner), 27))


@given(steps=schedules, shift=st.floats(0.3, 5))
def test_the_run_that_it_was_made_for_gets_the_very_steps(steps: tuple[int, ...], shift: float) -> None:
    policy = FixedSchedule(steps=steps, made_for=28, made_for_noises=noises(28, shift))
    assert policy.schedule(28, noises(28, shift)) == set(steps)
    assert policy.schedule(28) == set(steps), "without noise levels it goes by number"


@given(steps=schedules, total=st.integers(2, 60), shift=st.floats(0.3, 5))
def test_any_other_run_gets_as_large_a_share(steps: tuple[int, ...], total: int, shift: float) -> None:
    policy = FixedSchedule(steps=steps, made_for=28, made_for_noises=noises(28, 3.0))
    computed = policy.schedule(total, noises(total, shift))
    assert len(computed) == min(max(round(len(steps) * total / 28), 2), total)
    assert {0, total - 1} <= computed <= set(range(total))


@pytest.mark.parametrize(("shift", "is_spread"), [(1.1, False), (1.2, True), (3.0, True), (6.0, True)])
@pytest.mark.parametrize("total", [20, 28, 50])
def test_another_shift_computes_where_the_default_does(shift: float, is_spread: bool, total: int) -> None:
    policy = FixedSchedule(steps=(*range(0, 26, 2), 27), made_for=28, made_for_noises=noises(28), compute_last=False)
    spread = FixedSchedule(num_computed=total // 2, by_noise=True, compute_last=False)
    elsewhere = noises(total, shift)
    assert (policy.schedule(total, elsewhere) == spread.schedule(total, elsewhere)) is is_spread


def test_few_steps_stay_where_as_much_noise_is_left_under_another_shift() -> None:
    made_at, steps, elsewhere = noises(28, 3.0), (0, 4, 8, 12, 16, 20, 23, 25, 27), noises(28)
    policy = FixedSchedule(steps=steps, made_for=28, made_for_noises=made_at)
    nearest = [min(range(28), key=lambda each: abs(elsewhere[each] - made_at[step])) for step in steps]
    assert sorted(policy.schedule(28, elsewhere))[:6] == nearest[:6] != list(steps[:6])


@pytest.mark.parametrize("made_shift", [1.0, 3.0, 6.0])
@pytest.mark.parametrize("total", [12, 20, 50, 100])
def test_another_number_of_steps_is_no_other_shift(made_shift: float, total: int) -> None:
    steps = (*range(14), 27)
    policy = FixedSchedule(steps=steps, made_for=28, made_for_noises=noises(28, made_shift))
    here = noises(total, made_shift)
    count = len(policy.schedule(total, here))
    assert policy.schedule(total, here) != FixedSchedule(num_computed=count, by_noise=True).schedule(total, here)


def test_a_shorter_run_follows_the_schedule_of_the_nearest_number_of_steps() -> None:
    steps, shorter = tuple(range(0, 28, 2)), (0, 1, 2, 3, 5, 8, 12, 16, 21, 25)
    alone = FixedSchedule(steps=steps, made_for=28, made_for_noises=noises(28), compute_last=False)
    policy = FixedSchedule(
        steps=steps, made_for=28, made_for_noises=noises(28), shorter=(shorter, (0, 9)), compute_last=False
    )
    # 14 of 28 are 10 of 20, and as many of 28 are the shorter schedule.
    assert len(policy.schedule(20, noises(20))) == 10
    assert {0, 1, 2, 3} <= policy.schedule(20, noises(20))
    assert not {0, 1, 2, 3} <= alone.schedule(20, noises(20))
    assert policy.schedule(28, noises(28)) == set(steps)
    assert policy.schedule(40, noises(40)) == alone.schedule(40, noises(40))
    with pytest.raises(ConfigError, match="shorter must be left out without made_for"):
        FixedSchedule(steps=steps, shorter=(shorter,))


def test_another_length_computes_where_as_much_noise_is_left() -> None:
    made_at, steps = noises(28, 3.0), tuple(range(0, 28, 3))
    policy = FixedSchedule(steps=steps, made_for=28, made_for_noises=made_at)
    twice = noises(56, 3.0)
    computed = sorted(policy.schedule(56, twice))
    assert len(computed) == 20
    # Every known step's noise is close to that of one of the computed ones, but for the last: longer runs end lower.
    for step in steps[:-1]:
        assert min(abs(twice[each] - made_at[step]) for each in computed) < 0.03


@pytest.mark.parametrize("made_at", [(1.0, 0.5), (0.1, 0.5, 1.0), (1.0, float("nan"), 0.5)])
def test_noise_that_does_not_fit_is_refused(made_at: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="made_for_noises must be"):
        FixedSchedule(steps=(0, 2), made_for=3, made_for_noises=made_at)
