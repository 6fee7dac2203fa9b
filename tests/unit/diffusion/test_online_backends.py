"""The caches by name that need nothing known about the model, and the options that backends take."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import EasyCache, ErrorControl, EveryNth, Polynomial, SeaCache
from omnireuse.diffusion.cache.selector import get_cache_backend
from omnireuse.diffusion.data import DiffusionCacheConfig, OmniDiffusionConfig
from omnireuse.errors import ConfigError, UnknownNameError
from omnireuse.named.step_caches import STEP_CACHES, config_of
from omnireuse.policies.base import Policy
from tests.helpers.tiny import TINY, Tiny


@pytest.mark.parametrize(
    ("name", "options", "policy"),
    [
        ("easy_cache", {"easy_thresh": 0.7, "easy_warmup_steps": 2}, EasyCache(threshold=0.7, warmup=2)),
        ("error_control", {"error_tolerance": 0.9, "error_max_gap": 4}, ErrorControl(tolerance=0.9, max_gap=4)),
        ("sea_cache", {"sea_thresh": 0.6, "sea_warmup_steps": 3}, SeaCache(threshold=0.6, warmup=3)),
        ("taylorseer", {"taylorseer_interval": 4, "taylorseer_warmup_steps": 2}, EveryNth(every=4, warmup=2)),
    ],
)
def test_backends_carry_their_options(flux: Tiny, name: str, options: dict[str, Any], policy: Policy) -> None:
    with omnireuse.enable(flux.pipe, name, **options) as handle:
        assert handle.strategy.policy == policy
        assert str(handle.summary()).startswith(name)
        alone = flux.run(steps=8)
        assert handle.summary().reused_calls > 0
    backend = get_cache_backend(name, OmniDiffusionConfig(cache_config=options).cache_config)
    assert backend is not None
    backend.enable(flux.pipe)
    backend.refresh(flux.pipe, 8)
    assert torch.equal(flux.run(steps=8), alone)
    backend.disable(flux.pipe)


def test_an_option_of_another_backend_is_refused(flux: Tiny) -> None:
    with pytest.raises(UnknownNameError, match="unknown option of 'easy_cache' 'sea_thresh'"):
        omnireuse.enable(flux.pipe, "easy_cache", sea_thresh=0.3)
    with pytest.raises(UnknownNameError, match="unknown option of 'tea_cache' 'mag_threshold'"):
        omnireuse.enable(flux.pipe, "tea_cache", mag_threshold=0.3)
    with pytest.raises(ConfigError, match="taylorseer_order must be 1, 2 or 3"):
        omnireuse.enable(flux.pipe, "taylorseer", taylorseer_order=4)
    assert omnireuse.enable(flux.pipe).enabled


@pytest.mark.parametrize("name", ["easy_thresh", "sea_thresh", "error_tolerance"])
def test_dials_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a finite number above 0"):
        DiffusionCacheConfig(**{name: 0.0})


def test_taylorseer_is_a_polynomial_on_the_output_at_its_true_spacing() -> None:
    tiny = TINY["wan"]()
    with omnireuse.enable(tiny.pipe, "taylorseer", taylorseer_order=2) as handle:
        assert handle.strategy.forecaster == Polynomial(order=2)
        assert handle.strategy.chosen_target == "output"
        tiny.run(steps=10)
    done = "".join("r" if event.reused else "c" for event in handle.events if event.branch == "cond")
    assert done == "cccrrcrrcc"


@pytest.mark.parametrize("name", sorted(STEP_CACHES))
def test_every_backend_says_what_it_reads(name: str) -> None:
    known = {field.name for field in fields(DiffusionCacheConfig)}
    assert STEP_CACHES[name].options
    assert set(STEP_CACHES[name].options) <= known
    with pytest.raises(UnknownNameError, match="unknown option of"):
        config_of(name, dict.fromkeys(known))


@pytest.mark.parametrize("tolerance", [1, 5.0])
def test_a_percentage_is_no_tolerance(tolerance: float) -> None:
    with pytest.raises(ConfigError, match=r"error_tolerance must be below 1, got .*0\.05 is 5 %"):
        DiffusionCacheConfig(error_tolerance=tolerance)
