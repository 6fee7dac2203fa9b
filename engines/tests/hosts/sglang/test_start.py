"""What an SGLang server reads when it starts, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.tests.hosts.sglang.conftest import DIFFUSERS, IN_SGLANG, NATIVE, Server, server_args

pytestmark = IN_SGLANG

VARIABLE = "OMNIREUSE_SGLANG"


@pytest.fixture
def start(plain: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts a server with this setting."""

    def started(setting: str, **options: Any) -> Any:
        monkeypatch.setenv(VARIABLE, setting)
        return server_args(**{**NATIVE, **options})

    yield started
    monkeypatch.undo()
    server_args(**NATIVE)


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What omnireuse logs. A server that starts takes away the handlers of the root logger, pytest's too."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("omnireuse")
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)


def test_every_request_of_a_server_that_is_on_reuses(start: Callable[..., Any], server: Server) -> None:
    start("on")
    assert server.calls()[1] == 2 * 14
    assert server.calls(reuse="off")[1] == 2 * 28
    assert server.calls(reuse={"speedup": 4})[1] == 2 * 7
    start('{"computed_steps": 10}')
    assert server.calls()[1] == 2 * 10


def test_cache_dit_for_the_whole_server_is_refused(start: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="the server uses cache-dit, too"):
        start("on", **DIFFUSERS, cache_dit_config={"cache_config": {}})


def test_a_hook_that_was_not_applied_is_named(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry

    lost = next(target for target in HookRegistry._patched if target.endswith("_predict_noise_with_cfg"))
    monkeypatch.setattr(HookRegistry, "_patched", HookRegistry._patched - {lost})
    with pytest.raises(ValueError, match=f"not hooked: {lost}"):
        start("on")
    start("off")
    assert f"omnireuse cannot get into this SGLang; not hooked: {lost}" in log


def test_a_policy_that_measures_is_refused_beside_data_parallelism(start: Callable[..., Any]) -> None:
    from omnireuse_engines.sglang.hooks import REUSE

    start('{"tolerance": 0.05}')
    with pytest.raises(ValueError, match="one of 2 replicas are no group of their own"):
        REUSE.start(SimpleNamespace(dp_size=2), cache_dit=False)
    start("off")


def test_a_profile_is_refused_on_a_native_pipeline(start: Callable[..., Any]) -> None:
    from sglang.multimodal_gen.runtime.pipelines_core import build_pipeline

    args = start('{"profile": "profile.json"}')
    with pytest.raises(ValueError, match="start the server with --backend diffusers"):
        build_pipeline(args)


def test_the_noise_of_the_scheduler_of_native_wan_is_known(plain: object) -> None:
    from sglang.multimodal_gen.runtime.models.schedulers.scheduling_flow_unipc_multistep import (
        FlowUniPCMultistepScheduler,
    )

    from omnireuse.noise.schedulers import noise_levels

    scheduler = FlowUniPCMultistepScheduler(shift=3.0)
    scheduler.set_timesteps(12, device="cpu")
    scheduler.set_begin_index(0)
    levels = noise_levels(scheduler)
    assert len(levels) == 12
    sample, output = torch.randn(2, 1, 4, 3, 3).unbind()
    for timestep, level in zip(scheduler.timesteps, levels, strict=True):
        if scheduler.step_index is None:
            scheduler._init_step_index(timestep)
        torch.testing.assert_close(
            level.value_of(sample, output), scheduler.convert_model_output(output, sample=sample)
        )
        scheduler.step(output, timestep, sample)
