"""The interface that engines know: configuration, selector, backends."""

from __future__ import annotations

import inspect
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.diffusion.cache.base import CacheBackend
from omnireuse.diffusion.cache.selector import get_cache_backend
from omnireuse.diffusion.cache.teacache import (
    TeaCacheBackend,
    TeaCacheConfig,
    published_coefficients,
)
from omnireuse.diffusion.data import DiffusionCacheConfig, OmniDiffusionConfig
from omnireuse.errors import ConfigError, StateError, UnknownNameError, WrongTypeError
from omnireuse.named.step_caches import STEP_CACHES
from tests.helpers.tiny import Tiny

DEFAULTS = {
    "rel_l1_thresh": 0.2,
    "coefficients": None,
    "mag_threshold": 0.24,
    "mag_max_skip_steps": 5,
    "mag_retention_ratio": 0.1,
    "mag_ratios": None,
    "mag_calibrate": False,
    "Fn_compute_blocks": 1,
    "Bn_compute_blocks": 0,
    "max_warmup_steps": 4,
    "max_cached_steps": -1,
    "residual_diff_threshold": 0.24,
    "max_continuous_cached_steps": 3,
    "enable_taylorseer": False,
    "taylorseer_order": 1,
    "scm_steps_mask_policy": None,
    "scm_steps_policy": "dynamic",
    "num_inference_steps": None,
    "force_refresh_step_hint": None,
    "force_refresh_step_policy": "once",
}


def test_the_specified_fields_and_defaults() -> None:
    # Fields of our own stand beside the specified ones.
    assert vars(DiffusionCacheConfig()).items() >= DEFAULTS.items()
    assert DiffusionCacheConfig.from_dict({}) == DiffusionCacheConfig()


@pytest.mark.parametrize("name", ["rel_l1_thresh", "mag_threshold", "residual_diff_threshold"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "high", None])
def test_thresholds_must_be_finite_and_positive(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"DiffusionCacheConfig\({name}=.*{name} must be a finite number above 0"):
        DiffusionCacheConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("coefficients", [1, 2, 3]),
        ("coefficients", [1, 2, 3, 4, math.inf]),
        ("mag_ratios", []),
        ("mag_ratios", [1.0, 0.0]),
        ("mag_ratios", "1,1"),
        ("mag_retention_ratio", 1.0),
        ("mag_max_skip_steps", 0),
        ("mag_calibrate", "yes"),
        ("Fn_compute_blocks", 0),
        ("Bn_compute_blocks", -1),
        ("max_warmup_steps", -1),
        ("max_cached_steps", -2),
        ("max_continuous_cached_steps", -2),
        ("enable_taylorseer", 1),
        ("taylorseer_order", 0),
        ("scm_steps_mask_policy", "fastest"),
        ("scm_steps_policy", "moving"),
        ("num_inference_steps", 0),
        ("force_refresh_step_hint", -1),
        ("force_refresh_step_policy", "often"),
    ],
)
def test_every_field_is_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        DiffusionCacheConfig(**{name: value})


def test_from_dict_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UnknownNameError, match="unknown cache option 'rel_l1_threshold'; did you mean 'rel_l1_thresh'"):
        DiffusionCacheConfig.from_dict({"rel_l1_threshold": 0.3})
    for other in ([("rel_l1_thresh", 0.3)], "x", 3, None):
        with pytest.raises(TypeError):
            DiffusionCacheConfig.from_dict(other)  # type: ignore[arg-type]


def test_engine_config_takes_mappings_json_and_configs() -> None:
    for given in ({"rel_l1_thresh": 0.3}, '{"rel_l1_thresh": 0.3}', DiffusionCacheConfig(rel_l1_thresh=0.3)):
        assert OmniDiffusionConfig(cache_backend="tea_cache", cache_config=given).cache_config.rel_l1_thresh == 0.3
    assert OmniDiffusionConfig().cache_config == DiffusionCacheConfig()


def test_broken_json_names_the_position() -> None:
    with pytest.raises(ValueError, match="line 2, column 2"):
        OmniDiffusionConfig(cache_config='{"rel_l1_thresh": 0.3,\n }')
    with pytest.raises(WrongTypeError):
        OmniDiffusionConfig(cache_config="[1, 2]")


def test_the_environment_counts_only_without_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSION_CACHE_BACKEND", "tea_cache")
    assert OmniDiffusionConfig().cache_backend == "tea_cache"
    assert OmniDiffusionConfig(cache_backend="mag_cache").cache_backend == "mag_cache"
    assert OmniDiffusionConfig(cache_backend="none").cache_backend == "none"
    monkeypatch.setenv("DIFFUSION_CACHE_BACKEND", "")
    assert OmniDiffusionConfig().cache_backend is None


def test_the_selector() -> None:
    assert get_cache_backend(None, {}) is None
    assert get_cache_backend("none", {}) is None
    backend = get_cache_backend("tea_cache", {"rel_l1_thresh": 0.4})
    assert isinstance(backend, TeaCacheBackend)
    assert backend.config.rel_l1_thresh == 0.4
    assert repr(backend).startswith("TeaCacheBackend(config=DiffusionCacheConfig(rel_l1_thresh=0.4")
    with pytest.raises(ValueError, match=r"known: .*tea_cache"):
        get_cache_backend("speedy", {})
    with pytest.raises(WrongTypeError):
        get_cache_backend("tea_cache", [1])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(STEP_CACHES))
def test_every_backend_keeps_the_contract(name: str) -> None:
    if name == "cache_dit":
        pytest.importorskip(name, reason="the extra cache-dit is not installed")
    backend = get_cache_backend(name, DiffusionCacheConfig())
    assert isinstance(backend, CacheBackend)
    parameters = inspect.signature(backend.refresh).parameters
    assert list(parameters) == ["pipeline", "num_inference_steps", "verbose"]
    assert parameters["verbose"].default is True
    assert not backend.is_enabled()
    assert backend.stats() == {}


def test_the_base_class_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        CacheBackend(DiffusionCacheConfig())  # type: ignore[abstract]


def test_a_backend_from_enable_to_disable(flux: Tiny) -> None:
    full = flux.run(steps=10)
    backend = TeaCacheBackend(DiffusionCacheConfig(rel_l1_thresh=0.6, coefficients=(0, 0, 0, 0.3, 0)))
    backend.enable(flux.pipe)
    assert backend.is_enabled()
    with pytest.raises(StateError, match="enabled already"):
        backend.enable(flux.pipe)
    # Neither needed on a diffusers pipeline, nor harmful.
    reused = flux.run(steps=10)
    backend.refresh(flux.pipe, 10)
    backend.refresh(flux.pipe, num_inference_steps=10, verbose=False)
    assert torch.equal(flux.run(steps=10), reused)
    stats = backend.stats()
    assert stats["runs"] == 2
    assert stats["reused_calls"] > 0
    with pytest.raises(StateError, match="not enabled"):
        backend.refresh(SimpleNamespace(), 10)
    with pytest.raises(ConfigError, match="num_inference_steps must"):
        backend.refresh(flux.pipe, -1)
    backend.disable(flux.pipe)
    backend.disable(flux.pipe)
    assert not backend.enabled
    assert torch.equal(flux.run(steps=10), full)
    backend.enable(flux.pipe)
    assert torch.equal(flux.run(steps=10), reused)
    backend.disable(flux.pipe)


def test_every_transformer_of_a_pipeline_is_served() -> None:
    import copy

    from tests.helpers.tiny import TINY

    tiny = TINY["wan"]()
    tiny.pipe.transformer_2 = copy.deepcopy(tiny.pipe.transformer)
    tiny.pipe.register_to_config(boundary_ratio=0.6)
    tiny.pipe.register_modules(transformer_2=tiny.pipe.transformer_2)
    full = tiny.run(steps=10)
    for region in ("step", "call", "blocks"):
        with omnireuse.enable(tiny.pipe, policy="never", region=region) as handle:
            assert torch.equal(tiny.run(steps=10), full)
        assert handle.summary().calls == (10 if region == "step" else 20)
        assert handle.summary().calls_outside == 0
        with omnireuse.enable(tiny.pipe, policy="fixed", region=region) as handle:
            tiny.run(steps=10)
        assert handle.summary().reused_calls > 0


def test_coefficients_come_from_the_table_for_the_signal_we_watch() -> None:
    assert TeaCacheConfig().transformer_type == "QwenImageTransformer2DModel"
    assert TeaCacheConfig(transformer_type="FluxTransformer2DModel").coefficients[0] == pytest.approx(498.651651)
    # Wan's rows differ by signal; ours is the projected time embedding.
    assert published_coefficients("WanTransformer3DModel")[0] == pytest.approx(-52186.2437)


def test_a_model_without_coefficients_is_told_how_to_calibrate() -> None:
    with pytest.raises(UnknownNameError, match=r"FluxTransformer2DModel.*to calibrate:.*fit_tea_cache"):
        TeaCacheConfig(transformer_type="MyOwnTransformer")
    for bad in (math.nan, 0, -1):
        with pytest.raises(ConfigError, match="rel_l1_thresh"):
            TeaCacheConfig(rel_l1_thresh=bad)
    with pytest.raises(ConfigError, match="exactly 5"):
        TeaCacheConfig(coefficients=[1, 2])


def test_tea_cache_learns_a_models_own_polynomial(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, policy="never", region="blocks", signal="modulated_input") as handle:
        flux.run(steps=20)
        flux.run(steps=20, seed=1)
    coefficients = omnireuse.fit_tea_cache(handle.events)
    assert len(coefficients) == 5
    assert all(math.isfinite(c) for c in coefficients)
    pairs = [(e.drift, e.error) for e in handle.events if e.drift is not None and e.error is not None]
    fitted = [sum(c * d**p for c, p in zip(coefficients, (4, 3, 2, 1, 0), strict=True)) for d, _ in pairs]
    mean = sum(error for _, error in pairs) / len(pairs)
    assert sum((f - e) ** 2 for f, (_, e) in zip(fitted, pairs, strict=True)) < sum((e - mean) ** 2 for _, e in pairs)
    with pytest.raises(ConfigError, match="at least 10 steps"):
        omnireuse.fit_tea_cache(handle.events[:5])
