"""A server of vllm-omni whose steps compute in two precisions does not start with reuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from omnireuse.errors import ConfigError, UnknownNameError
from omnireuse_engines.vllm_omni.backend import Backend
from tests.helpers.tiny import TINY


def served(config: dict[str, Any], ends: tuple[int, int] | None = None) -> None:
    pipe = TINY["flux"]().pipe
    pipe.od_config = SimpleNamespace(**config)
    if ends is not None:
        schedule = SimpleNamespace(first_steps=ends[0], last_steps=ends[1])
        pipe.transformer.mixed_precision_runtime = SimpleNamespace(config=schedule)
    Backend({"speedup": 2}).enable(pipe)


@pytest.mark.parametrize(
    ("config", "ends", "named"),
    [
        (
            {"diffusion_kv_cache_dtype": "fp8", "diffusion_kv_cache_skip_step_indices": {0, 1}},
            None,
            "diffusion_kv_cache_skip_steps",
        ),
        ({}, (3, 0), "cosmos3_mixed_precision"),
        ({}, (0, 3), "cosmos3_mixed_precision"),
    ],
)
def test_steps_of_two_precisions_are_refused(
    config: dict[str, Any], ends: Any, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match=f"{named} computes some steps in another precision .*; leave it out"):
        served(config, ends)
    assert f"the server cannot start with omnireuse: --cache-config: {named} computes" in caplog.text


def test_a_wrong_option_is_logged_before_the_engine_fails(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'speedup'"):
        Backend({"sped": 2})
    (line,) = caplog.messages
    assert line.startswith("the server cannot start with omnireuse: unknown option of --cache-config")


def test_a_cache_of_the_engine_itself_is_refused_and_whom_the_server_serves_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match="vllm-omni has cache-dit built in"):
        Backend({"backend": "cache_dit"})
    with caplog.at_level("INFO", "omnireuse"):
        Backend({"speedup": 3, "default": "off"}).enable(TINY["flux"]().pipe)
    assert "omnireuse serves FluxPipeline: 3x fewer steps for requests that ask for it in extra_args" in caplog.text


@pytest.mark.parametrize(
    ("config", "ends"),
    [
        ({}, None),
        ({}, (0, 0)),
        ({"diffusion_kv_cache_dtype": "fp8"}, None),
        ({"diffusion_kv_cache_dtype": None, "diffusion_kv_cache_skip_step_indices": {0}}, None),
    ],
)
def test_one_precision_is_served(config: dict[str, Any], ends: Any) -> None:
    served(config, ends)
