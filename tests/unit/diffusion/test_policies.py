from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import omnireuse
from omnireuse import (
    EasyCache,
    ErrorControl,
    EveryNth,
    Hold,
    Never,
    ResidualDiff,
    SeaCache,
    Spread,
    StepMask,
    Steps,
    TeaCache,
)
from omnireuse.diffusion.cache.selector import get_cache_backend
from omnireuse.errors import ConfigError, StateError, UnknownNameError
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.signals import change_of
from omnireuse.policies import policy_named
from omnireuse.policies.base import Policy, StepView
from omnireuse.policies.by_change import TeaCacheState
from omnireuse.policies.fixed import SCHEDULES, scm_mask
from omnireuse.policies.spread import spread_by_noise
from tests.helpers.tiny import FLUX_CALL, Tiny

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


# -- step masks --------------------------------------------------------------------------------------------------------


AT_28 = {
    "slow": "11111111 0 111 00 111 00 11 00 1 000 1",
    "medium": "111111 0 11 000 11 000 11 000 11 000 1",
    "fast": "111111 0 1 000 1 0000 1 00000 1 0000 1",
    "ultra": "1111 00 1 00000 1 000000 1 0000000 1",
}


def longest_reuse(mask: tuple[int, ...]) -> int:
    return max(len(run) for run in "".join(map(str, mask)).split("1"))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_table_at_28_steps(name: str) -> None:
    assert "".join(map(str, scm_mask(name, 28))) == AT_28[name].replace(" ", "")


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_count_keeps_the_share_and_the_bound(name: str) -> None:
    share = sum(SCHEDULES[name][0]) / 28
    bound = max(SCHEDULES[name][1])
    for total in range(1, 1001):
        mask = scm_mask(name, total)
        assert len(mask) == total
        assert set(mask) <= {0, 1}
        assert mask[0] == mask[-1] == 1
        assert longest_reuse(mask) <= bound, total
        computed = sum(mask)
        # As near as whole steps allow, where the first and the last must be among them.
        nearest = min(range(min(2, total), total + 1), key=lambda count: abs(count / total - share))
        assert abs(computed / total - share) <= abs(nearest / total - share) + 1e-12, total
        if total >= 17:
            assert abs(computed / total - share) <= 0.03, total


@given(st.lists(st.integers(0, 1), min_size=1, max_size=60))
def test_an_explicit_mask_is_taken_as_it_is(mask: list[int]) -> None:
    policy = StepMask(mask=mask)
    done = [policy.wants_reuse(None, StepView(index=i, total=len(mask))) for i in range(len(mask))]
    assert done == [0 < i < len(mask) - 1 and not computes for i, computes in enumerate(mask)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": "fastest"}, UnknownNameError, "unknown step mask 'fastest'; did you mean 'fast'"),
        ({"mask": []}, ConfigError, "mask must be the name of a schedule, or a 0 or 1 for each step"),
        ({"mask": [1, 2]}, ConfigError, "mask must be"),
        ({"mask": 3}, ConfigError, "mask must be"),
    ],
)
def test_bad_masks_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    for policy in (StepMask, ResidualDiff):
        with pytest.raises(error, match=message):
            policy(**options)


def test_a_mask_of_another_length_is_an_error_before_the_first_step(flux: Tiny) -> None:
    calls: list[int] = []
    full = flux.run(steps=6)
    hook = flux.pipe.transformer.transformer_blocks[1].register_forward_hook(lambda *_: calls.append(1))
    with (
        omnireuse.enable(flux.pipe, policy=StepMask(mask=[1, 0, 1]), region="step"),
        pytest.raises(StateError, match="has 3 entries, but this run has 6 steps"),
    ):
        flux.run(steps=6)
    assert calls == []
    hook.remove()
    assert torch.equal(flux.run(steps=6), full)


def test_an_unknown_step_count_is_an_error() -> None:
    for policy in (StepMask(), ResidualDiff(mask="fast")):
        with pytest.raises(StateError, match="depends on the number of steps, which is not known"):
            policy.wants_reuse(policy.start(), StepView(index=0))


@pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])
def test_static_the_mask_decides_alone(flux: Tiny, region: str) -> None:
    mask = (1, 1, 0, 0, 1, 0, 1, 0)
    with omnireuse.enable(flux.pipe, policy=StepMask(mask=mask), region=region) as handle:
        masked = flux.run(steps=8, guided=False)
    # The last step computes whatever the mask says.
    assert [not event.reused for event in handle.events] == [True, True, False, False, True, False, True, True]
    assert all(event.drift is None for event in handle.events)
    assert handle.events[-1].reason == "last"
    with omnireuse.enable(flux.pipe, policy=Steps(steps=(0, 1, 4, 6)), region=region):
        assert torch.equal(flux.run(steps=8, guided=False), masked)


def test_dynamic_reuses_where_mask_and_policy_agree(flux: Tiny) -> None:
    free = {"max_warmup_steps": 3, "max_continuous_cached_steps": -1}
    done = []
    for threshold in (1e9, 1e-9):
        policy = ResidualDiff(residual_diff_threshold=threshold, mask=(1, 0, 0, 0, 1, 0, 0, 1), **free)
        with omnireuse.enable(flux.pipe, policy=policy, region="tail") as handle:
            flux.run(steps=8, guided=False)
        done.append([event.reused for event in handle.events])
        assert all(event.drift is not None for event in handle.events[1:])
    # The policy's own warm-up holds under the mask.
    assert done == [[False, False, False, True, False, True, True, False], [False] * 8]


def test_a_policy_under_a_mask_is_told_what_was_done() -> None:
    policy = ResidualDiff(max_warmup_steps=0, max_continuous_cached_steps=1, mask=(1, 0, 0, 1, 0, 0))
    state, done = policy.start(), []
    for index in range(6):
        view = StepView(index=index, total=6, drift=0.0)
        done.append(policy.wants_reuse(state, view))
        state = policy.after(state, view, done[-1])
    assert done == [False, True, False, False, True, False]


def test_the_fields_reach_the_mask_and_follow_the_step_count(flux: Tiny) -> None:
    options = {"scm_steps_mask_policy": "fast", "scm_steps_policy": "static", "residual_diff_threshold": 1e-9}
    with omnireuse.enable(flux.pipe, "db_cache", **options) as handle:
        for steps in (8, 11):
            flux.run(steps=steps, guided=False)
    done = [int(not event.reused) for event in handle.events]
    assert tuple(done) == scm_mask("fast", 8) + scm_mask("fast", 11)
    # The threshold decides under the same mask when it is dynamic.
    with omnireuse.enable(flux.pipe, "db_cache", **options | {"scm_steps_policy": "dynamic"}) as handle:
        flux.run(steps=8, guided=False)
    assert handle.summary().reused_calls == 0


@pytest.mark.parametrize("name", ["first_block_cache", "cache_dit"])
def test_refresh_tells_an_engine_without_a_scheduler_another_step_count(flux: Tiny, name: str) -> None:
    if name == "cache_dit":
        pytest.importorskip(name, reason="the extra cache-dit is not installed")
    model = flux.pipe.transformer
    given = FLUX_CALL

    class Engine:
        transformer = model

    backend = get_cache_backend(name, {"scm_steps_mask_policy": "ultra", "scm_steps_policy": "static"})
    assert backend is not None
    engine = Engine()
    backend.enable(engine)
    counts = []
    for steps in (9, 6, 9):
        backend.refresh(engine, steps)
        before = backend.stats().get("computed_calls", 0)
        with torch.no_grad():
            for step in range(steps):
                model(hidden_states=torch.ones(1, 16, 16), timestep=torch.tensor([1.0 - step / steps]), **given)
        counts.append(backend.stats()["computed_calls"] - before)
    assert counts == [sum(scm_mask("ultra", steps)) for steps in (9, 6, 9)]
    backend.disable(engine)


def test_a_step_count_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_inference_steps must be a whole number of at least 1, got 0"):
        scm_mask("fast", 0)


# -- EasyCache, SeaCache and error control -----------------------------------------------------------------------------


ONLINE = ["easy_cache", "error_control", "sea_cache"]


def ratio(now: torch.Tensor, before: torch.Tensor) -> float:
    top, bottom = change_of(now, before).tolist()
    return float(top / bottom)


def played(policy: Policy, views: list[StepView]) -> list[bool]:
    """What a policy does where no guard overrules it."""
    state, done = policy.start(), []
    for view in views:
        reuse = policy.wants_reuse(state, view)
        state = policy.after(state, view, reuse)
        done.append(reuse)
    return done


@pytest.mark.parametrize("kind", [EasyCache, SeaCache])
@given(drifts=st.lists(st.floats(0, 0.5), min_size=1, max_size=40), threshold=st.floats(0.01, 2), data=st.data())
def test_changes_add_up_until_the_threshold(
    kind: type[EasyCache] | type[SeaCache], drifts: list[float], threshold: float, data: st.DataObject
) -> None:
    warmup = data.draw(st.integers(1, 10))
    views = [StepView(index=i, total=len(drifts), drift=drift if i else None) for i, drift in enumerate(drifts)]
    account, expected = 0.0, []
    for i, drift in enumerate(drifts):
        reuse = i >= warmup and account + drift < threshold
        account = account + drift if reuse else 0.0
        expected.append(reuse)
    assert played(kind(threshold=threshold, warmup=warmup), views) == expected


@pytest.mark.parametrize("kind", [EasyCache, SeaCache])
def test_what_is_not_known_or_not_a_number_computes(kind: type[EasyCache] | type[SeaCache]) -> None:
    for drift in (None, math.nan, math.inf):
        assert not kind(threshold=9.0).wants_reuse(0.0, StepView(index=8, drift=drift))


def measured(error: float, order: int, steps: int, **options: Any) -> list[int]:
    """Gaps that error control takes where a forecast over d steps is off by error · d^(order + 1)."""
    policy = ErrorControl(**{"max_gap": 6, "scale": 1.0} | options)
    state: Any = policy.start()
    last, known, computed = 0, None, []
    for index in range(steps):
        view = StepView(index=index, total=steps, coordinate=1 - index / steps, error=known, order=order)
        if policy.wants_reuse(state, view):
            state = policy.after(state, view, True)
            continue
        state = policy.after(state, view, False)
        known = error * (index - last) ** (order + 1) if index else None
        last = index
        computed.append(index)
    return [b - a for a, b in pairwise(computed)]


@pytest.mark.parametrize(("order", "gap"), [(0, 5), (1, 3), (2, 2)])
def test_the_gap_settles_where_the_expected_error_meets_the_tolerance(order: int, gap: int) -> None:
    # Four times the error of one step is aimed at: reached after 4, 2 and 1.58 steps by the three orders.
    gaps = measured(0.01, order, 60, tolerance=0.0401, safety=1.0, growth=8.0, max_gap=20)
    assert set(gaps[5:-1]) == {gap}


def test_growth_safety_and_the_longest_gap_bound_the_gap() -> None:
    assert measured(1e-9, 0, 40, growth=2.0, max_gap=100)[:4] == [1, 3, 7, 15]
    assert max(measured(1e-9, 0, 40, max_gap=3)) == 3
    assert max(measured(0.01, 0, 40, tolerance=0.05, safety=0.41, growth=8.0, max_gap=20)) == 3
    assert set(measured(0.01, 0, 40, tolerance=0.005)) == {1}
    assert set(measured(0.01, 0, 40, tolerance=0.9, max_gap=1)) == {1}


def test_a_worse_forecast_brings_the_next_computed_step_nearer() -> None:
    policy = ErrorControl(tolerance=0.02, safety=1.0, scale=1.0)
    state: Any = None
    for index, at in ((0, 1.0), (4, 0.6)):
        state = policy.after(state, StepView(index=index, coordinate=at), False)
    views = [StepView(index=index, coordinate=1 - index / 10, error=0.02, order=1) for index in range(5, 10)]
    assert [policy.wants_reuse(state, view) for view in views] == [True] * 4 + [False]
    worse = [StepView(index=index, coordinate=1 - index / 10, error=0.08, order=1) for index in range(5, 10)]
    assert [policy.wants_reuse(state, view) for view in worse] == [True, True, False, False, False]


def test_errors_grow_with_the_third_power_of_the_distance_at_most() -> None:
    gaps = {order: measured(0.01, order, 60, tolerance=0.0401, safety=1.0, growth=8.0, max_gap=20) for order in (2, 3)}
    policy = ErrorControl(tolerance=0.5, scale=1.0, safety=1.0)
    state: Any = None
    for index, at in ((0, 1.0), (1, 0.9)):
        state = policy.after(state, StepView(index=index, coordinate=at), False)
    for order, allowed in ((1, 0.12), (2, 0.06), (3, 0.06)):
        for error, reused in ((allowed, True), (allowed * 1.1, False)):
            assert policy.wants_reuse(state, StepView(index=3, coordinate=0.7, error=error, order=order)) == reused
    assert set(gaps[2][5:-1]) == {2}


def test_the_scale_widens_the_bound_of_each_step() -> None:
    state: Any = None
    for index in (0, 1):
        state = ErrorControl().after(state, StepView(index=index), False)
    view = StepView(index=2, error=0.5, order=0)
    assert ErrorControl(tolerance=0.05, safety=1.0, scale=10.0).wants_reuse(state, view)
    assert not ErrorControl(tolerance=0.05, safety=1.0, scale=9.9).wants_reuse(state, view)


@given(
    tolerance=st.floats(0.001, 0.9),
    larger=st.floats(1.0, 1.1),
    error=st.floats(1e-6, 10.0),
    smaller=st.floats(0.01, 1.0),
    noise=st.floats(0.0, 1.0),
    order=st.integers(0, 3),
    distance=st.integers(1, 6),
)
def test_a_larger_tolerance_a_smaller_error_and_a_shorter_distance_never_compute_more(
    tolerance: float, larger: float, error: float, smaller: float, noise: float, order: int, distance: int
) -> None:
    state: Any = None
    for index in (0, 3):
        state = ErrorControl().after(state, StepView(index=index), False)

    def reuses(tolerance: float, error: float, distance: int) -> bool:
        view = StepView(index=3 + distance, error=error, order=order, noise=noise)
        return ErrorControl(tolerance=min(tolerance, 0.99)).wants_reuse(state, view)

    if reuses(tolerance, error, distance):
        assert reuses(tolerance * larger, error, distance)
        assert reuses(tolerance, error * smaller, distance)
        assert reuses(tolerance, error, max(distance - 1, 1))


@given(errors=st.lists(st.floats(1e-6, 1.0), min_size=28, max_size=28), tolerance=st.floats(0.001, 0.9))
def test_no_gap_is_longer_than_its_bounds(errors: list[float], tolerance: float) -> None:
    policy, state, computed, known = ErrorControl(tolerance=tolerance, max_gap=6), None, [], None
    for index, error in enumerate(errors):
        reused = policy.wants_reuse(state, StepView(index=index, error=known, order=1))
        state = policy.after(state, StepView(index=index), reused)
        if not reused:
            computed.append(index)
            known = error
    gaps = [b - a for a, b in pairwise(computed)]
    assert computed[:2] == [0, 1]
    assert max(gaps) <= policy.max_gap
    assert all(after <= policy.growth * 1.05 * before + 1 for before, after in pairwise(gaps))


def test_distance_is_what_the_axis_says() -> None:
    policy = ErrorControl(tolerance=0.02, safety=1.0, scale=1.0)
    state: Any = None
    for index, at in ((0, 1.0), (1, 0.9)):
        state = policy.after(state, StepView(index=index, coordinate=at), False)
    assert policy.wants_reuse(state, StepView(index=2, coordinate=0.8, error=0.01, order=0))
    assert not policy.wants_reuse(state, StepView(index=2, coordinate=0.5, error=0.01, order=0))


def test_late_errors_weigh_more_because_less_noise_is_left_to_hide_them() -> None:
    policy = ErrorControl(tolerance=0.1, safety=1.0, scale=1.0)
    state: Any = None
    for index in (0, 1):
        state = policy.after(state, StepView(index=index), False)
    for noise, reused in ((None, True), (1.0, True), (0.5, True), (0.3, True), (0.29, False), (0.0, False)):
        assert policy.wants_reuse(state, StepView(index=2, error=0.03, order=0, noise=noise)) == reused


@pytest.mark.parametrize("error", [None, math.nan, math.inf])
def test_an_error_nobody_knows_computes(error: float | None) -> None:
    policy = ErrorControl(tolerance=0.9)
    state: Any = None
    for index in range(2):
        state = policy.after(state, StepView(index=index), False)
    assert not policy.wants_reuse(state, StepView(index=2, error=error))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (EasyCache, {"threshold": 0}, "threshold must be a finite number above 0"),
        (EasyCache, {"warmup": 0}, "warmup must be a whole number of at least 1"),
        (ErrorControl, {"tolerance": -1}, "tolerance must be a finite number above 0"),
        (ErrorControl, {"tolerance": 1}, r"tolerance must be below 1, got 1; it is a share, not a percentage"),
        (ErrorControl, {"tolerance": 15.0}, "0.05 is 5 %"),
        (ErrorControl, {"safety": 1.1}, "safety must be above 0 and at most 1"),
        (ErrorControl, {"growth": 0.5}, "growth must be a finite number of at least 1"),
    ],
)
def test_options_out_of_range_are_refused(kind: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**options)


# -- on pipelines -----------------------------------------------------------------------------------------------------


BOLD = {
    "easy_cache": EasyCache(threshold=5.0),
    "error_control": ErrorControl(tolerance=0.99, scale=50.0),
    "sea_cache": SeaCache(threshold=5.0),
}


@pytest.mark.parametrize("name", ONLINE)
def test_every_pipeline_is_served(tiny: Tiny, name: str) -> None:
    results = []
    with omnireuse.enable(tiny.pipe, Strategy(policy=BOLD[name], max_consecutive=2)) as handle:
        for _ in range(2):
            results.append(tiny.run(steps=9))
    assert torch.equal(*results)
    assert torch.isfinite(results[0]).all()
    for branch in {event.branch for event in handle.events}:
        done = [event.reused for event in handle.events if event.branch == branch and event.run == 1]
        assert not done[0]
        assert not done[-1]
        assert any(done)


def test_the_expected_change_is_the_latents_change_times_the_last_rate(flux: Tiny) -> None:
    inputs: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []

    def note(_module: Any, _args: Any, kwargs: dict[str, Any], out: Any) -> None:
        inputs.append(kwargs["hidden_states"].clone())
        outputs.append(out[0].clone())

    flux.pipe.transformer.register_forward_hook(note, with_kwargs=True)
    with omnireuse.enable(
        flux.pipe, policy=EasyCache(threshold=1e-9), region="call", prediction_target="output"
    ) as handle:
        flux.run(steps=5, guided=False)
    drifts = [event.drift for event in handle.events]
    assert drifts[:2] == [None, None]
    for step in (2, 3, 4):
        rate = ratio(outputs[step - 1], outputs[step - 2]) / ratio(inputs[step - 1], inputs[step - 2])
        assert drifts[step] == pytest.approx(rate * ratio(inputs[step], inputs[step - 1]), rel=1e-4)


def test_the_rate_lies_between_computed_steps(flux: Tiny) -> None:
    # Steps 0, 1, 2 and 4 compute: the rate that step 5 is judged with is that between 2 and 4.
    inputs: list[torch.Tensor] = []
    watch = flux.pipe.transformer.register_forward_pre_hook(
        lambda _m, _a, kwargs: inputs.append(kwargs["hidden_states"].clone()), with_kwargs=True
    )
    outputs: list[torch.Tensor] = []
    flux.pipe.transformer.register_forward_hook(lambda _m, _a, out: outputs.append(out[0].clone()))
    strategy = {"policy": Steps(steps=(0, 1, 2, 4, 5)), "region": "call", "prediction_target": "output"}
    with omnireuse.enable(flux.pipe, signal="expected_output", **strategy) as handle:
        flux.run(steps=7, guided=False)
    watch.remove()
    rate = ratio(outputs[3], outputs[2]) / ratio(inputs[3], inputs[2])
    assert handle.events[5].drift == pytest.approx(rate * ratio(inputs[4], inputs[3]), rel=1e-4)


@pytest.mark.parametrize("region", ["step", "call"])
@pytest.mark.parametrize("target", ["x0", "output"])
def test_error_control_sees_the_relative_error_of_x0(
    flux: Tiny, region: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[StepView] = []
    monkeypatch.setattr(ErrorControl, "wants_reuse", lambda _self, _state, view: bool(seen.append(view)))
    scheduler = flux.pipe.scheduler
    handed: list[tuple[torch.Tensor, torch.Tensor]] = []
    step = type(scheduler).step

    def note(self: Any, output: torch.Tensor, timestep: Any, sample: torch.Tensor, **kwargs: Any) -> Any:
        handed.append((output.clone(), sample.clone()))
        return step(self, output, timestep, sample, **kwargs)

    monkeypatch.setattr(type(scheduler), "step", note)
    with omnireuse.enable(flux.pipe, policy=ErrorControl(), forecaster=Hold(), region=region, prediction_target=target):
        seen.clear()
        flux.run(steps=4, guided=False)
    sigmas = scheduler.sigmas
    x0 = [sample - sigma * output for (output, sample), sigma in zip(handed, sigmas, strict=False)]
    off = (x0[2] - x0[1]) if target == "x0" else sigmas[2] * (handed[2][0] - handed[1][0])
    assert [view.noise for view in seen] == pytest.approx(sigmas[:4].tolist())
    assert seen[1].error is None
    assert seen[3].error == pytest.approx(float(off.abs().mean() / x0[2].abs().mean()), rel=1e-3)


def test_branches_keep_errors_of_their_own(flux: Tiny) -> None:
    with omnireuse.enable(
        flux.pipe, policy=ErrorControl(tolerance=0.99, scale=50.0, max_gap=3), region="call"
    ) as handle:
        flux.run(steps=10)
    branches = {event.branch for event in handle.events}
    assert len(branches) == 2
    for branch in branches:
        done = "".join("r" if event.reused else "c" for event in handle.events if event.branch == branch)
        assert done == "ccrrcrrcrc"


def test_regions_without_the_signal_are_refused(flux: Tiny) -> None:
    for policy in (EasyCache(), SeaCache()):
        with pytest.raises(ConfigError, match="region must be step or call"):
            omnireuse.enable(flux.pipe, policy=policy, region="blocks")
