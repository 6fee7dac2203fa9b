from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnireuse import EveryNth, Never, Spread, Steps, TeaCache
from omnireuse.errors import ConfigError, StateError, UnknownNameError
from omnireuse.policies import policy_named
from omnireuse.policies.base import Policy, StepView
from omnireuse.policies.by_change import TeaCacheState
from omnireuse.policies.spread import spread_by_noise

totals = st.integers(1, 200)


def play(
    policy: Policy, total: int, drifts: list[float] | None = None, noises: tuple[float, ...] | None = None
) -> list[bool]:
    """What a policy wants at each step when it always gets its way."""
    state, wanted = policy.start(), []
    for index in range(total):
        view = StepView(index=index, total=total, drift=drifts[index] if drifts and index else None, noises=noises)
        reuse = policy.wants_reuse(state, view)
        state = policy.after(state, view, reuse)
        wanted.append(reuse)
    return wanted


warmups = st.integers(0, 20)
spreads = st.one_of(
    st.builds(dict, power=st.floats(1, 5), by_noise=st.just(False)),
    st.just({}),
)
schedules = st.one_of(
    st.builds(EveryNth, every=st.integers(1, 30), warmup=warmups),
    st.builds(lambda count, warmup: Spread(num_computed=count + warmup, warmup=warmup), st.integers(2, 200), warmups),
    st.builds(Spread, speedup=st.floats(1, 50), warmup=warmups),
    st.builds(Spread, speedup=st.floats(1, 50), warmup=warmups, power=st.floats(1, 5), by_noise=st.just(False)),
    st.builds(Spread, speedup=st.floats(1, 50), warmup=warmups, compute_last=st.just(True)),
    st.builds(Spread, speedup=st.floats(1, 50), min_computed=st.integers(2, 30), min_steps=st.integers(2, 30)),
    st.builds(EveryNth, warmup=warmups),
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, tuple[float, ...] | None]:
    """A step count with the noise fractions of a shifted flow, or without any; from 1 down or from a lower one."""
    total, shift = draw(totals), draw(st.floats(0.3, 12))
    first = draw(st.sampled_from([1.0, 0.6]))
    even = [first * (1 - i / total) for i in range(total)]
    return total, draw(st.sampled_from([None, tuple(shift * s / (1 + (shift - 1) * s) for s in even)]))


@given(schedule=schedules, run=runs())
def test_a_schedule_reuses_neither_the_first_step_nor_the_warmup_and_is_deterministic(
    schedule: EveryNth | Spread, run: tuple[int, tuple[float, ...] | None]
) -> None:
    total, noises = run
    wanted = play(schedule, total, noises=noises)
    assert not wanted[0]
    # By noise the last step may have too little of it to be worth computing.
    assert not wanted[-1] or (isinstance(schedule, Spread) and schedule.by_noise and not schedule.compute_last)
    assert not any(wanted[: schedule.warmup])
    assert wanted == play(schedule, total, noises=noises)
    assert [i for i, reuse in enumerate(wanted) if not reuse] == sorted(schedule.schedule(total, noises))


@given(run=runs(), count=st.integers(2, 200), warmup=warmups, spread=spreads)
def test_the_number_of_computed_steps_is_exact(
    run: tuple[int, tuple[float, ...] | None], count: int, warmup: int, spread: dict[str, float]
) -> None:
    count = max(count, warmup + 1)
    computed = Spread(num_computed=count, warmup=warmup, **spread).schedule(*run)
    assert len(computed) == min(count, run[0])
    assert computed <= set(range(run[0]))


@given(run=runs(), speedup=st.floats(1, 20), warmup=warmups, spread=spreads)
def test_a_speedup_computes_the_nearest_number_of_steps_and_the_warmup(
    run: tuple[int, tuple[float, ...] | None], speedup: float, warmup: int, spread: dict[str, float]
) -> None:
    total = run[0]
    schedule = Spread(speedup=speedup, warmup=warmup, **spread)
    computed = len(schedule.schedule(*run))
    always = min(max(warmup, 1) + 1, total)
    if computed > always:
        assert abs(computed - total / speedup) <= 0.5
    assert computed >= max(always, total / speedup - 0.5)
    told = schedule.caution(*run) or ""
    assert ("always do" in told) == (computed > math.floor(total / speedup + 0.5))


def test_halves_are_rounded_up() -> None:
    counts = {total: len(Spread(speedup=2.0).schedule(total)) for total in (7, 9, 11, 25, 28)}
    assert counts == {7: 4, 9: 5, 11: 6, 25: 13, 28: 14}
    assert len(Spread(speedup=1.5).schedule(28)) == 19


@given(run=runs(), budgets=st.lists(st.integers(2, 100), min_size=2, max_size=2), spread=spreads)
def test_a_larger_budget_computes_each_step_no_later(
    run: tuple[int, tuple[float, ...] | None], budgets: list[int], spread: dict[str, float]
) -> None:
    few, many = (sorted(Spread(num_computed=count, **spread).schedule(*run)) for count in sorted(budgets))
    assert len(few) <= len(many)
    assert all(a >= b for a, b in zip(few, many, strict=False))


@given(total=st.integers(1, 199), speedup=st.floats(1, 20))
def test_a_longer_run_and_a_smaller_speedup_compute_no_fewer_steps(total: int, speedup: float) -> None:
    def count(total: int, speedup: float) -> int:
        return len(Spread(speedup=speedup).schedule(total))

    assert count(total, speedup) <= count(total + 1, speedup) <= count(total + 1, max(speedup / 1.3, 1.0))


def even(total: int, shift: float = 1.0) -> tuple[float, ...]:
    """The noise fractions of a flow-matching run of this shift."""
    return tuple(shift * s / (1 + (shift - 1) * s) for s in (1 - i / total for i in range(total)))


@pytest.mark.parametrize("count", [100, 40])
def test_steps_spread_by_noise_stand_where_as_much_noise_is_left_whatever_the_shift(count: int) -> None:
    schedule = Spread(num_computed=count)
    # A fifth of the steps is few.
    power = 2.5 if count == 100 else 2
    aimed = [1 - (k / (count - 1)) ** power for k in range(count)]
    for shift in (3, 6):  # at shift 1 the run's own first steps are too wide
        noises = even(200, shift)
        found = sorted((noises[step] for step in schedule.schedule(200, noises)), reverse=True)
        assert found == pytest.approx(aimed, abs=0.06)
    assert schedule.schedule(200) == Spread(num_computed=count).schedule(200)


@pytest.mark.parametrize(
    ("noises", "lasts"),
    [(even(28), (26, 26, 25)), (even(28, 6), (27, 27, 27)), (tuple(1 - i * 0.037 for i in range(28)), (26, 25, 24))],
    ids=["shift 1", "shift 6", "0.001 left"],
)
def test_steps_spread_by_noise_leave_out_a_last_step_with_little_noise(
    noises: tuple[float, ...], lasts: tuple[int, ...]
) -> None:
    for count, last in zip((14, 9, 7), lasts, strict=True):
        schedule = Spread(num_computed=count).schedule(28, noises)
        assert (len(schedule), max(schedule)) == (count, last)
        assert max(Spread(num_computed=count, compute_last=True).schedule(28, noises)) == 27


def test_below_two_fifths_of_the_steps_a_spread_is_wider_at_the_beginning() -> None:
    few, enough = (sorted(spread_by_noise(even(30, 3), count, 1, compute_last=False)) for count in (11, 12))
    assert few == [0, 1, 3, 6, 10, 14, 18, 21, 24, 27, 29]
    assert enough == [0, 1, 3, 5, 8, 11, 15, 18, 21, 24, 27, 29]


@pytest.mark.parametrize("count", [7, 9, 14])
def test_noise_counts_as_a_share_of_what_the_run_begins_with(count: int) -> None:
    falling = tuple(1 - (step / 28) ** 1.3 for step in range(28))
    lower = tuple(0.927 * noise for noise in falling)
    assert spread_by_noise(lower, count, 1, compute_last=False) == spread_by_noise(
        falling, count, 1, compute_last=False
    )


def test_a_share_of_noise_that_rounding_leaves_above_one_is_one() -> None:
    schedule = Spread(num_computed=14)
    assert schedule.schedule(28, (1 + 1e-7, *even(28)[1:])) == schedule.schedule(28, even(28))


def test_noise_that_does_not_fall_is_not_gone_by() -> None:
    schedule = Spread(num_computed=4)
    assert schedule.schedule(8, (0.9, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)) == schedule.schedule(8)
    assert schedule.schedule(8, tuple(i / 8 for i in range(8))) == schedule.schedule(8)


def test_a_budget_that_warmup_and_last_step_exceed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least 9, because the first 8 steps \(warmup\) and the last are always"):
        Spread(num_computed=8, warmup=8)
    with pytest.raises(ConfigError, match="num_computed must be at least 2, because the first step and the last"):
        Spread(num_computed=1)


def test_short_runs_compute_everything_and_say_what_to_do_instead() -> None:
    schedule = Spread(speedup=2.0, min_computed=12, min_steps=20)
    assert [len(schedule.schedule(total)) for total in (1, 4, 19, 20, 24, 25, 60)] == [1, 4, 19, 12, 12, 13, 30]
    assert "all 8 steps are computed" in (schedule.caution(8) or "")
    assert "take fewer steps" in (schedule.caution(8) or "")
    assert schedule.caution(1) is schedule.caution(28) is None
    asked = Spread(speedup=2.0)
    assert "compare with a run of 4 steps" in (asked.caution(8) or "")
    assert asked.caution(28) is None


@given(total=totals, count=st.integers(2, 100))
def test_evenly_spread_gaps_differ_by_one_at_most(total: int, count: int) -> None:
    computed = sorted(Spread(num_computed=count, power=1.0).schedule(total))
    gaps = [b - a for a, b in pairwise(computed)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_warmup_steps_compute() -> None:
    assert sorted(EveryNth(every=3, warmup=4).schedule(12)) == [0, 1, 2, 3, 6, 9, 11]
    assert sorted(Spread(num_computed=6, warmup=3, power=1.0).schedule(12)) == [0, 1, 2, 5, 8, 11]


def test_a_power_puts_steps_where_the_path_bends() -> None:
    assert sorted(Spread(num_computed=7).schedule(28)) == [0, 1, 4, 8, 14, 20, 27]
    with pytest.raises(ConfigError, match="finite number of at least 1"):
        Spread(num_computed=8, power=0.5)


def test_explicit_steps_count_from_either_end() -> None:
    assert sorted(Steps(steps=(3, -3)).schedule(10)) == [0, 3, 7, 9]


def test_without_a_step_count_only_a_plain_interval_can_be_kept() -> None:
    view = StepView(index=4, total=None)
    assert not EveryNth(every=4).wants_reuse(None, view)
    assert EveryNth(every=3).wants_reuse(None, view)
    with pytest.raises(StateError, match="number of steps"):
        Spread(num_computed=4).wants_reuse(None, view)


def test_explicit_steps_beyond_the_run_are_an_error_before_anything_is_reused() -> None:
    with pytest.raises(StateError, match="step 30, but this run has 28 steps"):
        Steps(steps=(1, 30)).wants_reuse(None, StepView(index=0, total=28))


@given(
    drifts=st.lists(st.floats(0, 0.5), min_size=1, max_size=60),
    threshold=st.floats(1e-3, 2),
    coefficients=st.tuples(*[st.floats(-2, 2)] * 5),
)
def test_tea_cache_follows_its_definition(
    drifts: list[float], threshold: float, coefficients: tuple[float, ...]
) -> None:
    policy = TeaCache(rel_l1_thresh=threshold, coefficients=coefficients)
    expected, account = [], 0.0
    for index, d in enumerate(drifts):
        account += abs(sum(c * d**power for c, power in zip(coefficients, (4, 3, 2, 1, 0), strict=True)))
        reuse = index > 0 and account < threshold
        account = account if reuse else 0.0
        expected.append(reuse)
    near = any(math.isclose(abs(c), threshold, rel_tol=1e-6) for c in (account,))
    assert near or play(policy, len(drifts), drifts) == expected


def test_tea_cache_told_of_a_computation_it_did_not_want_starts_anew() -> None:
    policy = TeaCache(rel_l1_thresh=1.0)
    view = StepView(index=3, total=9, drift=0.4)
    assert policy.after(TeaCacheState(0.5), view, reused=True) == pytest.approx((0.9,))
    assert policy.after(TeaCacheState(0.5), view, reused=False) == TeaCacheState(0.0)


@pytest.mark.parametrize("drift", [math.nan, math.inf])
def test_tea_cache_computes_on_a_drift_that_is_no_number(drift: float) -> None:
    assert not TeaCache(rel_l1_thresh=1e9).wants_reuse(TeaCacheState(), StepView(index=3, total=9, drift=drift))


def test_never_never_reuses() -> None:
    assert not any(play(Never(), 20))


@pytest.mark.parametrize("value", [0, -0.1, math.nan, math.inf, "0.2", None, True])
def test_thresholds_out_of_range_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="rel_l1_thresh must be a finite number above 0"):
        TeaCache(rel_l1_thresh=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [(1, 2, 3, 4), (1, 2, 3, 4, math.nan), "12345", 7, (1, 2, 3, 4, 5, 6)])
def test_coefficients_must_be_five_finite_numbers(value: object) -> None:
    with pytest.raises(ConfigError, match="exactly 5 finite numbers"):
        TeaCache(coefficients=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "options", "message"),
    [
        (EveryNth, {"every": 0}, "every must be a whole number of at least 1"),
        (Spread, {"speedup": math.nan}, "speedup must be a finite number"),
        (Spread, {"speedup": "2"}, "speedup must be a finite number of at least 1, got '2'"),
        (Spread, {"power": "2", "speedup": 2.0}, "power must be a finite number"),
        (Steps, {"steps": 5}, "steps must be a sequence of whole numbers, got 5"),
        (Spread, {"by_noise": 1, "speedup": 2.0}, "by_noise must be True or False"),
        (Spread, {"min_computed": 1, "speedup": 2.0}, "min_computed must be a whole number of at least 2"),
        (
            Spread,
            {"min_steps": 9, "num_computed": 4},
            "min_steps must be given with speedup",
        ),
        (Steps, {"steps": (1.5,)}, "steps must be a sequence of whole numbers"),
        (Spread, {"num_computed": 4, "speedup": 2.0}, "speedup must be given, or num_computed, and not both"),
        (Steps, {"steps": (1,), "made_at": (1.0, 0.5)}, "elsewhere must be given with made_at, and only then"),
        (Steps, {"steps": (1,), "made_at": (1.0, 0.5), "elsewhere": Never()}, "elsewhere must be a schedule"),
    ],
)
def test_schedules_out_of_range_are_refused(schedule: Any, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schedule(**options)


def test_steps_that_were_chosen_for_one_run_leave_others_to_another_schedule() -> None:
    here, elsewhere = (1.0, 0.8, 0.5, 0.2), Spread(num_computed=2, by_noise=False)
    policy = Steps(steps=(0, 1, 2), made_at=here, elsewhere=elsewhere, compute_last=False)
    assert policy.schedule(4, here) == policy.schedule(4) == {0, 1, 2}
    assert policy.schedule(4, tuple(each + 5e-4 for each in here)) == {0, 1, 2}
    assert policy.schedule(4, (1.0, 0.9, 0.6, 0.3)) == elsewhere.schedule(4)
    assert policy.schedule(9) == elsewhere.schedule(9)
    numbers = Steps(steps=(0, 1, 2), made_at=(0.0, 1.0, 2.0, 3.0), elsewhere=elsewhere, compute_last=False)
    assert numbers.schedule(4, here) == {0, 1, 2}, "the noise of its run is not known"


def test_unknown_policies_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tea_cache'"):
        policy_named("teacache")
