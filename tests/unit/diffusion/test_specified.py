"""Code written for the specified interface moves over: positions, plain dicts, two methods, unknown step counts."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.diffusion.cache import CacheBackend, TeaCacheBackend, TeaCacheConfig
from omnireuse.diffusion.cache.base import StepCacheBackend
from omnireuse.diffusion.cache.magcache import MagCacheBackend, MagCacheConfig
from omnireuse.diffusion.cache.selector import get_cache_backend
from omnireuse.diffusion.cache.teacache import register_extractor
from omnireuse.diffusion.data import DiffusionCacheConfig, OmniDiffusionConfig
from omnireuse.errors import ConfigError, StateError, UnknownNameError, WrongTypeError
from omnireuse.named.step_caches import STEP_CACHES
from tests.helpers.foreign import IDENTITY, Foreign, denoise, take_apart
from tests.helpers.tiny import Tiny

from .test_backends import DEFAULTS

COEFFICIENTS = [1, 2.0, -3, 4, 0.5]


class Held(CacheBackend):
    """As an engine's own backend is written: two methods, and nothing else of the base class."""

    def enable(self, pipeline: Any) -> None:
        transformer, self.forward, self.last, self.calls = pipeline.transformer, pipeline.transformer.forward, {}, 0

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            branch = self.calls % 2
            if self.calls > 4 and self.calls % 4 > 1:
                return self.last[branch]
            self.last[branch] = self.forward(*args, **kwargs)
            return self.last[branch]

        transformer.forward = forward
        self.enabled = True

    def refresh(self, pipeline: Any, num_inference_steps: int, verbose: bool = True) -> None:
        self.last, self.calls = {}, 0


def serve(backend: CacheBackend | None, tiny: Tiny, steps: int) -> torch.Tensor:
    """A request, as an engine's runner serves it."""
    if backend is not None and backend.is_enabled():
        backend.refresh(tiny.pipe, steps)
    return tiny.run(steps=steps)


def test_a_backend_of_two_methods_is_enough(flux: Tiny) -> None:
    assert CacheBackend.__abstractmethods__ == {"enable", "refresh"}
    full = serve(None, flux, 8)
    backend = Held({"any": "options"})
    assert repr(backend) == "Held(config={'any': 'options'})"
    assert torch.equal(serve(backend, flux, 8), full), "not enabled yet"
    assert not backend.is_enabled()
    assert backend.stats() == {}
    backend.disable(flux.pipe)
    backend.enable(flux.pipe)
    assert backend.is_enabled()
    reused = serve(backend, flux, 8)
    assert not torch.equal(reused, full)
    assert torch.equal(serve(backend, flux, 8), reused), "refresh makes each request the first"
    assert backend.stats() == {}
    with pytest.raises(StateError, match=r"Held\.disable: this backend cannot restore the pipeline; implement disable"):
        backend.disable(flux.pipe)


def test_configs_take_their_fields_by_position() -> None:
    assert TeaCacheConfig(0.3).rel_l1_thresh == 0.3
    assert TeaCacheConfig(0.3, COEFFICIENTS, "Any") == TeaCacheConfig(
        rel_l1_thresh=0.3, coefficients=COEFFICIENTS, transformer_type="Any"
    )
    assert MagCacheConfig(0.3).threshold == 0.3
    assert MagCacheConfig(0.3, 4, 0.2, 10, [1.0, 0.9], False, "Any") == MagCacheConfig(
        threshold=0.3,
        max_skip_steps=4,
        retention_ratio=0.2,
        num_inference_steps=10,
        mag_ratios=[1.0, 0.9],
        mag_calibrate=False,
        transformer_type="Any",
    )
    assert DiffusionCacheConfig(0.3, COEFFICIENTS, 0.1) == DiffusionCacheConfig(
        rel_l1_thresh=0.3, coefficients=COEFFICIENTS, mag_threshold=0.1
    )
    assert OmniDiffusionConfig("tea_cache", {"rel_l1_thresh": 0.3}).cache_config == DiffusionCacheConfig(0.3)
    by_position = [field.name for field in fields(DiffusionCacheConfig) if not field.kw_only]
    assert by_position == list(DEFAULTS), "the order of the specification"
    assert DiffusionCacheConfig(*DEFAULTS.values()) == DiffusionCacheConfig()
    with pytest.raises(TypeError, match="positional"):
        DiffusionCacheConfig(*vars(DiffusionCacheConfig()).values())  # our own fields have no place in that order


@pytest.mark.parametrize("name", sorted(STEP_CACHES))
def test_backends_take_a_plain_dict(name: str) -> None:
    if name == "cache_dit":
        pytest.importorskip(name, reason="the extra cache-dit is not installed")
    backend = get_cache_backend(name, {"rel_l1_thresh": 0.3, "Fn_compute_blocks": 2})
    assert backend is not None
    assert backend.config == DiffusionCacheConfig(rel_l1_thresh=0.3, Fn_compute_blocks=2)
    with pytest.raises(UnknownNameError, match="did you mean 'rel_l1_thresh'"):
        get_cache_backend(name, {"rel_l1_tresh": 0.3})
    with pytest.raises(WrongTypeError, match=r"config must be a DiffusionCacheConfig or a mapping, got a float"):
        get_cache_backend(name, 0.3)  # type: ignore[arg-type]  # the mistake that is tested


@pytest.mark.parametrize("text", ["TEA_CACHE", "Tea_Cache", " tea_cache "])
def test_the_environment_counts_in_any_case(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DIFFUSION_CACHE_BACKEND", text)
    config = OmniDiffusionConfig()
    assert config.cache_backend == "tea_cache"
    assert isinstance(get_cache_backend(config.cache_backend, config.cache_config), TeaCacheBackend)


OPTIONS: dict[str, dict[str, Any]] = {
    "cache_dit": {"residual_diff_threshold": 0.9, "scm_steps_mask_policy": "fast", "scm_steps_policy": "static"},
    "db_cache": {"residual_diff_threshold": 0.9, "scm_steps_mask_policy": "fast"},
    "first_block_cache": {"residual_diff_threshold": 0.9},
    "mag_cache": {"mag_ratios": [1.0, *[0.98] * 9]},
    "tea_cache": {"rel_l1_thresh": 0.6, "coefficients": [0, 0, 0, 0.3, 0]},
    "easy_cache": {"easy_thresh": 0.7},
    "sea_cache": {"sea_thresh": 0.6},
    "taylorseer": {},
    "error_control": {"error_tolerance": 0.9},
}


@pytest.mark.parametrize("name", sorted(STEP_CACHES))
def test_a_request_without_a_step_count_leaves_it_to_the_scheduler(flux: Tiny, name: str) -> None:
    if name == "cache_dit":
        pytest.importorskip(name, reason="the extra cache-dit is not installed")
    backend = get_cache_backend(name, OPTIONS[name])
    assert isinstance(backend, StepCacheBackend)
    backend.enable(flux.pipe)
    assert backend.handle is not None
    backend.refresh(flux.pipe, 10)
    told = flux.run(steps=10)
    backend.refresh(flux.pipe, 0)
    assert torch.equal(flux.run(steps=10), told)
    # What an earlier request said does not stay.
    backend.refresh(flux.pipe, 0, verbose=False)
    flux.run(steps=14)
    assert {event.total for event in backend.handle.events if event.run == 3} == {14}
    assert any(event.reused for event in backend.handle.events if event.run == 3)
    for wrong in (-1, 1.5, None, True):
        with pytest.raises(ConfigError, match="num_inference_steps must be a whole number of at least 0"):
            backend.refresh(flux.pipe, wrong)  # type: ignore[arg-type]  # the mistakes that are tested
    backend.disable(flux.pipe)


def test_without_a_scheduler_an_unknown_step_count_stays_unknown() -> None:
    register_extractor("Foreign", take_apart)
    pipeline = SimpleNamespace(transformer=Foreign())
    backend = TeaCacheBackend({"rel_l1_thresh": 0.5, "coefficients": IDENTITY})
    backend.enable(pipeline)
    backend.refresh(pipeline, 8)
    denoise(pipeline.transformer)
    backend.refresh(pipeline, 0)
    denoise(pipeline.transformer)
    assert backend.handle is not None
    assert [event.total for event in backend.handle.events] == [8] * 8 + [None] * 8
    assert any(event.reused for event in backend.handle.events if event.total is None)
    backend.disable(pipeline)
    # MagCache cannot do without it; the config may say it where the request does not.
    mag = MagCacheBackend({"mag_ratios": [1.0, *[0.98] * 7]})
    mag.enable(pipeline)
    mag.refresh(pipeline, 0)
    with pytest.raises(StateError, match="depends on the number of steps"):
        denoise(pipeline.transformer)
    mag.disable(pipeline)
    mag = MagCacheBackend({"mag_ratios": [1.0, *[0.98] * 7], "num_inference_steps": 8})
    mag.enable(pipeline)
    denoise(pipeline.transformer)
    mag.refresh(pipeline, 0)
    denoise(pipeline.transformer)
    assert mag.handle is not None
    assert [event.total for event in mag.handle.events] == [8] * 16
    mag.disable(pipeline)


def test_an_order_of_taylorseer_turns_it_on(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, "db_cache", taylorseer_order=2) as handle:
        assert handle.strategy.forecaster == omnireuse.Polynomial(order=2)
    with omnireuse.enable(flux.pipe, "db_cache", taylorseer_order=2, enable_taylorseer=False) as handle:
        assert not isinstance(handle.strategy.forecaster, omnireuse.Polynomial)
    with pytest.raises(ConfigError, match="taylorseer_order must be 1, 2 or 3, got 4; 'cache_dit' takes higher ones"):
        omnireuse.enable(flux.pipe, "db_cache", taylorseer_order=4)
