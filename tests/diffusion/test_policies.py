from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnireuse import FixedSchedule, Never, TeaCache
from omnireuse.diffusion.reuse.policies import policy_named
from omnireuse.diffusion.reuse.policies.tea_cache import TeaCacheState
from omnireuse.diffusion.reuse.policy import Policy, StepView
from omnireuse.errors import ConfigError, StateError, UnknownNameError

totals = st.integers(1, 200)


def play(policy: Policy, total: int, drifts: list[float] | None = None) -> list[bool]:
    """What a policy wants at each step when it always gets its way."""
    state, wanted = policy.start(), []
    for index in range(total):
        view = StepView(index=index, total=total, drift=drifts[index] if drifts and index else None)
        reuse = policy.wants_reuse(state, view)
        state = policy.after(state, view, reuse)
        wanted.append(reuse)
    return wanted


schedules = st.one_of(
    st.builds(FixedSchedule, every=st.integers(1, 30), warmup=st.integers(0, 20)),
    st.builds(FixedSchedule, num_computed=st.integers(1, 200), warmup=st.integers(0, 20)),
    st.builds(FixedSchedule, speedup=st.floats(1, 50), warmup=st.integers(0, 20)),
    st.builds(FixedSchedule, speedup=st.floats(1, 50), warmup=st.integers(0, 20), power=st.floats(1, 5)),
    st.builds(FixedSchedule, warmup=st.integers(0, 20)),
)


@given(schedule=schedules, total=totals)
def test_a_schedule_never_reuses_the_first_or_last_step_and_is_deterministic(
    schedule: FixedSchedule, total: int
) -> None:
    wanted = play(schedule, total)
    assert not wanted[0]
    assert not wanted[-1]
    assert wanted == play(schedule, total)
    assert [i for i, reuse in enumerate(wanted) if not reuse] == sorted(schedule.computed_steps(total))


@given(total=totals, count=st.integers(1, 200), warmup=st.integers(0, 20), power=st.floats(1, 5))
def test_the_number_of_computed_steps_is_kept(total: int, count: int, warmup: int, power: float) -> None:
    computed = FixedSchedule(num_computed=count, warmup=warmup, power=power).computed_steps(total)
    assert len(computed) == max(min(count, total), min(2, total))


@given(total=st.integers(2, 200), speedup=st.floats(1, 20))
def test_a_promised_speedup_is_kept_where_first_and_last_step_allow_it(total: int, speedup: float) -> None:
    computed = len(FixedSchedule(speedup=speedup).computed_steps(total))
    assert computed <= max(total / speedup, 2)


@given(total=totals, count=st.integers(2, 100))
def test_evenly_spread_gaps_differ_by_one_at_most(total: int, count: int) -> None:
    computed = sorted(FixedSchedule(num_computed=count).computed_steps(total))
    gaps = [b - a for a, b in pairwise(computed)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_warmup_steps_compute() -> None:
    assert sorted(FixedSchedule(every=3, warmup=4).computed_steps(12)) == [0, 1, 2, 3, 6, 9, 11]
    assert sorted(FixedSchedule(num_computed=6, warmup=3).computed_steps(12)) == [0, 1, 2, 5, 8, 11]


def test_a_power_puts_steps_where_the_path_bends() -> None:
    assert sorted(FixedSchedule(num_computed=7, power=1.7).computed_steps(28)) == [0, 1, 4, 8, 14, 20, 27]
    with pytest.raises(ConfigError, match="unless num_computed or speedup"):
        FixedSchedule(every=3, power=2.0)
    with pytest.raises(ConfigError, match="finite number of at least 1"):
        FixedSchedule(num_computed=8, power=0.5)


def test_explicit_steps_count_from_either_end() -> None:
    assert sorted(FixedSchedule(steps=(3, -3)).computed_steps(10)) == [0, 3, 7, 9]


def test_without_a_step_count_only_a_plain_interval_can_be_kept() -> None:
    view = StepView(index=4, total=None)
    assert not FixedSchedule(every=4).wants_reuse(None, view)
    assert FixedSchedule(every=3).wants_reuse(None, view)
    with pytest.raises(StateError, match="number of steps"):
        FixedSchedule(num_computed=4).wants_reuse(None, view)


def test_explicit_steps_beyond_the_run_are_an_error_before_anything_is_reused() -> None:
    with pytest.raises(StateError, match="step 30, but this run has 28 steps"):
        FixedSchedule(steps=(1, 30)).wants_reuse(None, StepView(index=0, total=28))


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
    ("options", "message"),
    [
        ({"every": 0}, "every must be a whole number of at least 1"),
        ({"num_computed": 2.5}, "num_computed must"),
        ({"speedup": math.nan}, "speedup must be a finite number"),
        ({"speedup": 0.5}, "speedup must"),
        ({"warmup": -1}, "warmup must"),
        ({"steps": "0,1"}, "steps must be a sequence of whole numbers"),
        ({"steps": (1.5,)}, "steps must be a sequence of whole numbers"),
        ({"every": 2, "speedup": 2.0}, "left out"),
    ],
)
def test_schedules_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FixedSchedule(**options)  # type: ignore[arg-type]


def test_unknown_policies_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tea_cache'"):
        policy_named("teacache")


def test_policies_import_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import omnireuse.diffusion.reuse.policies"
    subprocess.run([sys.executable, "-c", code], check=True)
