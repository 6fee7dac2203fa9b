"""The options of named caches: one dataclass each, from which all else follows."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from omnireuse.diffusion.cache.selector import get_cache_backend
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.errors import ConfigError
from omnireuse.named.step_caches import STEP_CACHES
from tests import TOP
from tests.helpers.tiny import Tiny

SCRIPT = TOP / "scripts" / "options.py"
GROUPS = {group for cache in STEP_CACHES.values() for group in cache.reads}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_the_page_and_the_types_say_what_is_declared(script: dict[str, Any]) -> None:
    for path, write in ((script["PAGE"], script["page"]), (script["TYPES"], script["types"])):
        text = path.read_text(encoding="utf-8")
        assert write(text) == text, "run: python scripts/options.py"
    for name in (*STEP_CACHES, *(each.name for each in fields(DiffusionCacheConfig))):
        assert f"`{name}`" in script["table_of"](STEP_CACHES)


def test_the_flat_record_has_the_options_of_all_caches() -> None:
    assert set(DiffusionCacheConfig.__bases__) == GROUPS


@pytest.mark.parametrize("group", sorted(GROUPS, key=lambda group: group.__name__))
def test_every_option_is_described_where_it_is_declared(group: type) -> None:
    described = re.findall(r"^    (\w+): ", inspect.getdoc(group) or "", re.MULTILINE)
    assert described == [each.name for each in fields(group)]
    assert all(f"    {name}: " in (DiffusionCacheConfig.__doc__ or "") for name in described)


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


USE = """
import runpy, sys
import omnireuse
from omnireuse.named.step_caches import STEP_CACHES
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.errors import ConfigError

assert DiffusionCacheConfig(easy_patience=3).easy_patience == 3
for options in ({"easy_patience": 0}, {"easy_patience": 1.5}, {"easy_patiense": 3}):
    try:
        omnireuse.enable(object(), "easy_cache", **options)
    except ConfigError as error:
        print(error)
script = runpy.run_path(sys.argv[1])
print(script["table_of"](STEP_CACHES), script["types_of"](DiffusionCacheConfig))
"""


def test_a_new_option_is_one_line(tmp_path: Path) -> None:
    """A copy of the package with one line more knows the option everywhere."""
    copy = shutil.copytree(TOP / "src" / "omnireuse", tmp_path / "omnireuse", ignore=shutil.ignore_patterns("*.pyc"))
    data = copy / "named" / "options.py"
    before = data.read_text(encoding="utf-8")
    after = re.sub(r"(?<=EasyCache.warmup\n)", "    easy_patience: Count = 7\n", before, count=1)
    assert after.count("\n") == before.count("\n") + 1
    data.write_text(after, encoding="utf-8")
    command = [sys.executable, "-c", USE, str(SCRIPT)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "enable(easy_patience=0): easy_patience must be a whole number of at least 1" in done.stdout
    assert "enable(easy_patience=1.5): easy_patience must be a whole number of at least 1" in done.stdout
    assert "unknown option of 'easy_cache' 'easy_patiense'; did you mean 'easy_patience'?" in done.stdout
    assert "| `easy_cache` | `step` | `easy_thresh`, `easy_warmup_steps`, `easy_patience` |" in done.stdout
    assert "    easy_patience: int\n" in done.stdout
