"""The environment as specified: it overrides the arguments, and what it cannot mean is reported."""

import logging

import pytest

from omnireuse.diffusion.cache.prompt_embed_cache import (
    resolve_prompt_embed_cache_config,
)
from omnireuse.errors import ConfigError

SWITCH, SIZE = "OMNI_DIFFUSION_PROMPT_EMBED_CACHE", "OMNI_DIFFUSION_PROMPT_EMBED_CACHE_SIZE"


@pytest.mark.parametrize("text", ["1", "true", "YES", " On "])
def test_the_environment_switches_on(monkeypatch, text):
    monkeypatch.setenv(SWITCH, text)
    assert resolve_prompt_embed_cache_config(False, 5) == (True, 5)


@pytest.mark.parametrize("text", ["0", "False", "no", "OFF"])
def test_the_environment_switches_off(monkeypatch, text):
    monkeypatch.setenv(SWITCH, text)
    monkeypatch.setenv(SIZE, "12")
    assert resolve_prompt_embed_cache_config(True) == (False, 12)


def test_without_environment_and_arguments_it_is_off_with_32(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.delenv(SIZE, raising=False)
    assert resolve_prompt_embed_cache_config() == (False, 32)
    assert resolve_prompt_embed_cache_config(True) == (True, 32)


@pytest.mark.parametrize(
    ("name", "text"), [(SWITCH, "maybe"), (SWITCH, ""), (SIZE, "0"), (SIZE, "-3"), (SIZE, "4.0"), (SIZE, "9" * 30)]
)
def test_an_unusable_override_is_reported(monkeypatch, caplog, name, text):
    monkeypatch.setenv(name, text)
    with caplog.at_level(logging.WARNING):
        assert resolve_prompt_embed_cache_config(True, 8) == (True, 8)
    assert f"{name}={text!r}" in caplog.text


def test_a_size_argument_below_one_is_refused():
    with pytest.raises(ConfigError, match="max_size"):
        resolve_prompt_embed_cache_config(max_size=0)
