"""EasyCache, SeaCache and error control: what they decide, and that they serve pipelines nobody declared."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import omnireuse
from omnireuse import EasyCache, ErrorControl, Hold, SeaCache, Steps
from omnireuse.errors import ConfigError
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.signals import change_of
from omnireuse.policies.base import Policy, StepView
from tests.helpers.tiny import Tiny

ONLINE = ["easy_cache", "error_control", "sea_cache"]


def ratio(now: torch.Tensor, before: torch.Tensor) -> float:
    top, bottom = change_of(now, before).tolist()
    return float(top / bottom)


def play(policy: Policy, views: list[StepView]) -> list[bool]:
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
    assert play(kind(threshold=threshold, warmup=warmup), views) == expected


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


@pytest.mark.parametrize("name", ONLINE)
def test_the_smallest_dial_computes_all_and_changes_nothing(flux: Tiny, name: str) -> None:
    full = flux.run(steps=7)
    dial = {"tolerance": 1e-12} if name == "error_control" else {"threshold": 1e-12}
    kinds = {"easy_cache": EasyCache, "error_control": ErrorControl, "sea_cache": SeaCache}
    with omnireuse.enable(flux.pipe, policy=kinds[name](**dial)) as handle:
        assert torch.equal(flux.run(steps=7), full)
    assert handle.summary().reused_calls == 0


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
