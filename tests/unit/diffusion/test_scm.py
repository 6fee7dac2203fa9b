"""Step masks: the named schedules for every step count, explicit masks, and what decides under them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import omnireuse
from omnireuse import ResidualDiff, StepMask, Steps
from omnireuse.diffusion.cache.selector import get_cache_backend
from omnireuse.errors import ConfigError, StateError, UnknownNameError
from omnireuse.policies.base import StepView
from omnireuse.policies.fixed import SCHEDULES, scm_mask
from tests.helpers.tiny import FLUX_CALL, Tiny

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
    with pytest.raises(error, match=message):
        StepMask(**options)
    with pytest.raises(error, match=message):
        ResidualDiff(**options)


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
