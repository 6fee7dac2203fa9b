"""Named caches on models that they cannot serve, and options out of range, in words of what the user gave."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

import omnireuse
from omnireuse.diffusion.cache.magcache import published_ratios
from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from omnireuse.errors import ConfigError, NothingPublishedError, UnsupportedModelError
from tests.helpers.tiny import TINY, Tiny


@pytest.mark.parametrize("name", ["tea_cache", "mag_cache", "db_cache", "first_block_cache"])
def test_a_unet_is_refused_before_any_figures_are_looked_up(name: Any) -> None:
    pipe = TINY["stable_diffusion"]().pipe
    with pytest.raises(
        UnsupportedModelError, match=rf"'{name}' cannot serve UNet2DConditionModel.*'sea_cache'"
    ) as said:
        omnireuse.enable(pipe, name)
    assert "region" not in str(said.value)
    for other in ("easy_cache", "error_control", "sea_cache", "taylorseer"):
        omnireuse.enable(pipe, other).disable()


def test_another_models_figures_are_not_offered() -> None:
    with pytest.raises(NothingPublishedError) as said:
        published_ratios("SD3Transformer2DModel")
    assert "did you mean" not in str(said.value)
    assert "MagCacheBackend(dict(mag_calibrate=True)).enable(pipe)" in str(said.value)
    assert str(pickle.loads(pickle.dumps(said.value))) == str(said.value)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("tea_cache", {"rel_l1_thresh": "0.2"}, "enable(rel_l1_thresh='0.2'): rel_l1_thresh must be a finite number"),
        ("tea_cache", {"rel_l1_thresh": "0.2"}, "; write rel_l1_thresh=0.2"),
        ("db_cache", {"Fn_compute_blocks": 100}, "enable(Fn_compute_blocks=100, Bn_compute_blocks=0): together they"),
        ("first_block_cache", {"Fn_compute_blocks": 2}, "enable(Fn_compute_blocks=2): Fn_compute_blocks must be 1"),
    ],
)
def test_an_option_is_blamed_by_its_own_name(flux: Tiny, name: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as said:
        omnireuse.enable(flux.pipe, name, **options)
    assert says in str(said.value)


def test_what_encodes_no_prompts_gets_no_cache_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"):
        assert install_prompt_embed_cache(SimpleNamespace()) is None
    assert caplog.text.count("SimpleNamespace has no callable encode_prompt") == 1
