"""The options of named caches: one dataclass each, from which all else follows."""

from __future__ import annotations

import runpy
from dataclasses import fields
from typing import Any

import pytest

from omnireuse.diffusion.cache.selector import get_cache_backend
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.errors import ConfigError
from omnireuse.named.step_caches import STEP_CACHES
from tests import TOP
from tests.helpers.tiny import Tiny

SCRIPT = TOP / "scripts" / "options.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_the_page_and_the_types_say_what_is_declared(script: dict[str, Any]) -> None:
    for path, write in ((script["PAGE"], script["page"]), (script["TYPES"], script["types"])):
        text = path.read_text(encoding="utf-8")
        assert write(text) == text, "run: python scripts/options.py"
    for name in (*STEP_CACHES, *(each.name for each in fields(DiffusionCacheConfig))):
        assert f"`{name}`" in script["table_of"](STEP_CACHES)


def test_a_strategy_skips_what_its_cache_says(flux: Tiny) -> None:
    options = {"mag_cache": {"mag_ratios": [1.0, 0.9]}, "tea_cache": {"coefficients": [0, 0, 0, 1, 0]}}
    for name, cache in STEP_CACHES.items():
        config = DiffusionCacheConfig(**options.get(name, {}))
        assert cache.strategy(config, flux.pipe).region == cache.skips


def test_db_cache_refuses_an_option_of_another_in_the_flat_record(flux: Tiny) -> None:
    backend = get_cache_backend("db_cache", {"force_refresh_step_hint": 3})
    assert backend is not None
    with pytest.raises(ConfigError, match="force_refresh_step_hint must be None with 'db_cache'"):
        backend.enable(flux.pipe)
