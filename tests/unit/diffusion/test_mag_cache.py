"""MagCache: the policy against its definition, the published table, and ratios measured on a model's own steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import omnireuse
from omnireuse.diffusion.cache.magcache import (
    MagCacheBackend,
    MagCacheConfig,
    apply_mag_cache_hook,
    published_ratios,
)
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.errors import ConfigError, StateError, UnknownNameError
from omnireuse.named.measuring import MagnitudeRecorder
from omnireuse.policies.base import StepView
from omnireuse.policies.mag_cache import MagCache, MagCacheState, by_branch, resampled
from tests.helpers.tiny import FLUX_CALL, TINY, Tiny


def play(policy: MagCache, total: int, branch: int = 0) -> list[bool]:
    state, wanted = policy.start(), []
    for index in range(total):
        view = StepView(index=index, total=total, branch=branch)
        reuse = index > 0 and policy.wants_reuse(state, view)
        state = policy.after(state, view, reuse)
        wanted.append(reuse)
    return wanted


@given(
    ratios=st.lists(st.floats(0.5, 1.5), min_size=1, max_size=60),
    threshold=st.floats(0.01, 1),
    most=st.integers(1, 8),
    retention=st.floats(0, 0.9),
)
def test_the_policy_follows_its_definition(ratios: list[float], threshold: float, most: int, retention: float) -> None:
    total = len(ratios)
    policy = MagCache(ratios=[ratios], threshold=threshold, max_skip_steps=most, retention_ratio=retention)
    expected, ratio, skipped, error = [False], 1.0, 0, 0.0
    for index in range(1, total):
        reuse = False
        if index >= int(retention * total + 0.5):
            ratio, skipped = ratio * ratios[index], skipped + 1
            error += abs(1 - ratio)
            reuse = error <= threshold and skipped <= most
        if not reuse:
            ratio, skipped, error = 1.0, 0, 0.0
        expected.append(reuse)
    assert play(policy, total) == expected


@given(ratios=st.lists(st.floats(0.5, 1.5), min_size=1, max_size=60), total=st.integers(1, 200))
def test_ratios_for_another_step_count_are_taken_from_the_nearest_step(ratios: list[float], total: int) -> None:
    found = resampled(tuple(ratios), total)
    assert len(found) == total
    assert resampled(tuple(ratios), len(ratios)) == tuple(ratios), "as they are, for as many steps"
    assert found[0] == ratios[0]
    if total > 1:
        assert found[-1] == ratios[-1]
        assert list(found) == [ratios[round(i * (len(ratios) - 1) / (total - 1))] for i in range(total)]


FLAT, NESTED = [1.0, 1.5, 0.75, 1.25], [[1.0, 1.5, 0.75, 1.25], [1.0, 0.5, 2.0, 1.125]]


@pytest.mark.parametrize("ratios", [FLAT, NESTED], ids=["for all branches", "for each"])
@pytest.mark.parametrize(
    "form",
    [
        torch.tensor,
        lambda ratios: torch.tensor(ratios, dtype=torch.bfloat16, requires_grad=True),
        np.array,
        lambda ratios: np.array(ratios, dtype=np.float32),
        list,
        tuple,
        lambda ratios: [torch.tensor(each) for each in ratios],
        lambda ratios: tuple(np.array(each) for each in ratios),
    ],
)
def test_ratios_may_be_a_tensor_an_array_a_list_or_a_tuple(flux: Tiny, ratios: list[Any], form: Any) -> None:
    given = form(ratios)
    expected = tuple(map(tuple, NESTED)) if ratios is NESTED else (tuple(FLAT),)
    assert MagCache(ratios=given).ratios == expected
    assert by_branch(MagCacheConfig(mag_ratios=given).mag_ratios) == expected
    config = DiffusionCacheConfig(mag_ratios=given)
    assert by_branch(MagCacheConfig(mag_ratios=config.mag_ratios).mag_ratios) == expected
    assert DiffusionCacheConfig.from_dict({"mag_ratios": given}) == config
    with omnireuse.enable(flux.pipe, "mag_cache", mag_ratios=given) as handle:
        assert handle.strategy.policy.ratios == expected


def test_a_config_keeps_a_list_of_its_own() -> None:
    given = [1.0, 0.9]
    configs = [DiffusionCacheConfig(mag_ratios=given), MagCacheConfig(mag_ratios=given)]
    given[1] = -1
    assert [config.mag_ratios for config in configs] == [[1.0, 0.9], [1.0, 0.9]]


def test_each_branch_has_its_own_ratios_and_a_third_takes_the_last() -> None:
    policy = MagCache(ratios=[[1.0] * 10, [0.5] * 10], retention_ratio=0)
    assert any(play(policy, 10, branch=0))
    assert not any(play(policy, 10, branch=1))
    assert play(policy, 10, branch=2) == play(policy, 10, branch=1)


def test_an_unknown_step_count_is_an_error() -> None:
    with pytest.raises(StateError, match="number of steps"):
        MagCache(ratios=[[1.0]]).wants_reuse(MagCacheState(), StepView(index=1, total=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0}, "threshold must"),
        ({"max_skip_steps": 0}, "max_skip_steps must"),
        ({"retention_ratio": 1.0}, "retention_ratio must"),
        ({"mag_ratios": [1.0, 0.0]}, "ratios must"),
        ({"mag_ratios": [[1.0], []]}, "ratios must"),
        ({"mag_ratios": "1"}, "ratios must"),
        ({"num_inference_steps": 0}, "num_inference_steps must"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MagCacheConfig(**options)


def test_the_specified_defaults_and_the_published_table() -> None:
    config = MagCacheConfig()
    assert (config.threshold, config.max_skip_steps, config.retention_ratio) == (0.24, 5, 0.1)
    assert (config.num_inference_steps, config.mag_calibrate) == (28, False)
    assert config.mag_ratios == published_ratios("FluxTransformer2DModel")
    assert len(config.mag_ratios) == 1
    theirs = pytest.importorskip("diffusers.hooks.mag_cache", reason="this version of diffusers has no MagCache")
    assert config.mag_ratios[0] == tuple(theirs.FLUX_MAG_RATIOS.to(torch.float64).numpy().round(5))
    first, second = published_ratios("WanTransformer3DModel")
    assert len(first) == len(second) == 50
    assert (first[:2], second[:2]) == ((1.0, 1.02504), (1.0, 1.03017))
    with pytest.raises(UnknownNameError, match=r"known: .*FluxTransformer2DModel.*mag_calibrate=True"):
        MagCacheConfig(transformer_type="Unheard")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("black-forest-labs/FLUX.1-dev", 1.21094),
        ("black-forest-labs/FLUX.1-Kontext-dev", 1.19531),
        ("/somewhere/FLUX.1-Kontext-dev/", 1.19531),
        ("my-own-flux", 1.21094),
    ],
)
def test_figures_are_borrowed_by_checkpoint_and_not_only_by_class(name: str, first: float) -> None:
    assert published_ratios("FluxTransformer2DModel", name)[0][:2] == (1.0, first)


def test_a_pipelines_own_name_chooses_the_row(flux: Tiny) -> None:
    flux.pipe.register_to_config(_name_or_path="black-forest-labs/FLUX.1-Kontext-dev")
    with omnireuse.enable(flux.pipe, "mag_cache") as handle:
        flux.run(steps=28, guided=False)
    assert handle.strategy.policy.ratios[0][:2] == (1.0, 1.19531)
    assert handle.summary().reused_calls > 0


def test_the_backend_serves_any_step_count(flux: Tiny) -> None:
    backend = MagCacheBackend(DiffusionCacheConfig(mag_threshold=0.5, mag_ratios=[1.0] + [0.98] * 27))
    full = flux.run(steps=12)
    backend.enable(flux.pipe)
    for steps in (12, 28, 40):
        flux.run(steps=steps)
        last = backend.handle.events[-1]
        assert (last.step, last.total) == (steps - 1, steps)
        assert any(event.reused for event in backend.handle.events if event.total == steps)
    backend.disable(flux.pipe)
    assert torch.equal(flux.run(steps=12), full)


@pytest.mark.parametrize("name", ["flux", "qwen_image", "wan"])
def test_calibration_measures_each_branch_without_changing_anything(name: str, tmp_path: Path) -> None:
    tiny = TINY[name]()
    full = tiny.run(steps=8)
    backend = MagCacheBackend(DiffusionCacheConfig(mag_calibrate=True))
    backend.enable(tiny.pipe)
    with pytest.raises(StateError, match="generate"):
        backend.calibrated_ratios()
    assert torch.equal(tiny.run(steps=8), full)
    one = backend.calibrated_ratios()
    assert torch.equal(tiny.run(steps=8), full)
    assert backend.calibrated_ratios() == one
    assert [len(branch) for branch in one] == [8, 8]
    assert one[0][0] == one[1][0] == 1.0
    assert one[0] != one[1]
    backend.save_ratios(tmp_path / "ratios.json")
    backend.disable(tiny.pipe)
    saved = json.loads((tmp_path / "ratios.json").read_text("utf-8"))
    measured = tuple(map(tuple, saved["ratios"]))
    assert measured == one
    assert saved["transformer_class"] == type(tiny.pipe.transformer).__name__
    with omnireuse.enable(tiny.pipe, policy=MagCache(ratios=measured, threshold=0.5), region="blocks") as handle:
        tiny.run(steps=8)
    assert handle.summary().reused_calls > 0


def test_a_ratio_is_the_mean_over_tokens() -> None:
    before = torch.tensor([[[3.0, 4.0], [1.0, 0.0]]])
    now = torch.tensor([[[6.0, 8.0], [0.0, 4.0]]])
    recorder = MagnitudeRecorder(num_streams=1, stream=0)
    memory = recorder.start()
    memory.observe(1.0, before)
    memory.observe(0.9, now)
    assert recorder.ratios(1) == (pytest.approx((1.0, (2 + 4) / 2)),)


def test_a_bare_module_is_told_its_step_count_by_the_config(flux: Tiny) -> None:
    transformer = flux.pipe.transformer
    given = FLUX_CALL

    @torch.no_grad()
    def sample() -> torch.Tensor:
        latents = torch.ones(1, 16, 16)
        for t in torch.linspace(1, 0.1, 10):
            latents = latents - transformer(hidden_states=latents, timestep=t[None], **given)[0] / 10
        return latents

    full = sample()
    config = MagCacheConfig(num_inference_steps=10, mag_ratios=[1.0] + [0.99] * 8 + [0.5])
    with apply_mag_cache_hook(transformer, config) as handle:
        assert not torch.equal(sample(), full)
    assert [event.reused for event in handle.events] == [False] + [True] * 5 + [False] + [True] * 2 + [False]
    assert {event.total for event in handle.events} == {10}
    assert torch.equal(sample(), full)


def test_asking_for_ratios_that_were_not_measured_is_an_error(flux: Tiny) -> None:
    backend = MagCacheBackend(DiffusionCacheConfig())
    backend.enable(flux.pipe)
    with pytest.raises(StateError, match="mag_calibrate=True"):
        backend.calibrated_ratios()
    backend.disable(flux.pipe)
