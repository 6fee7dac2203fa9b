"""Continuous batching in vllm-omni's step mode: every request equals its solo run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hosts.vllm_omni.conftest import (
    IN_VLLM_OMNI,
    drive,
    make_request,
    pipeline_of,
    run,
    runner_of,
    running_engine,
)
from tests.hosts.vllm_omni.tiny_qwen import save_adapter

pytestmark = IN_VLLM_OMNI

KEY = "omnireuse"


@pytest.fixture(scope="module")
def plain(tiny_qwen: Path) -> dict[int, torch.Tensor]:
    """Latents of two requests in an engine without a cache."""
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=3, step_execution=True) as engine:
        return {which: run(engine, make_request(which, steps)).output for which, steps in ((0, 24), (1, 30))}


@pytest.fixture(scope="module")
def engine(tiny_qwen: Path, plain: dict[int, torch.Tensor]) -> Iterator[Any]:
    options = {"cache_backend": KEY, "cache_config": {"speedup": 2, "prompt_cache": 8}}
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=3, step_execution=True, **options) as engine:
        yield engine


def forget_requests(engine: Any) -> None:
    """Drop what a wave that raised has left in the engine, which a server would shut down."""
    for name in list(runner_of(engine).state_cache):
        engine.scheduler.pop_request_state(name)
        runner_of(engine).state_cache.pop(name)
    getattr(engine.scheduler, "_running").clear()  # noqa: B009  # vllm-omni has no public way


@contextmanager
def other_backend(engine: Any, config: dict[str, Any]) -> Iterator[Any]:
    """The engine as if it had been started with another configuration of the cache."""
    from vllm_omni.diffusion.cache.selector import get_cache_backend

    runner, pipeline = runner_of(engine), pipeline_of(engine)
    before, served = runner.cache_backend, vars(pipeline).pop("denoise_step")
    try:
        runner.cache_backend = get_cache_backend(KEY, config)
        runner.cache_backend.enable(pipeline)
        yield runner.cache_backend
    finally:
        runner.cache_backend, pipeline.denoise_step = before, served


def test_off_equals_an_engine_without_a_cache_bit_for_bit(engine: Any, plain: dict[int, torch.Tensor]) -> None:
    for which, steps in ((0, 24), (1, 30)):
        assert torch.equal(run(engine, make_request(which, steps, reuse="off")).output, plain[which])


def test_off_by_default_serves_those_who_ask(
    engine: Any, plain: dict[int, torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "omnireuse"), other_backend(engine, {"speedup": 3, "default": "off"}):
        assert "omnireuse serves QwenImagePipeline: 3x fewer steps for requests that ask for it" in caplog.text
        assert torch.equal(run(engine, make_request(0, 24)).output, plain[0])
        for reuse, computed in (("on", 8), ({"speedup": 2}, 12)):
            result = run(engine, make_request(0, 24, reuse=reuse))
            assert result.stage_durations["omnireuse_steps_computed"] == computed


@pytest.mark.parametrize("wave", [1, 2, 5])
def test_requests_that_join_equal_their_solo_runs(engine: Any, wave: int) -> None:
    solo = [run(engine, make_request(0, 24)).output, run(engine, make_request(1, 30, reuse={"speedup": 3})).output]
    joined = [make_request(0, 24), make_request(1, 30, reuse={"speedup": 3})]
    results = drive(engine, {0: [joined[0]], wave: [joined[1]]})
    for request, alone in zip(joined, solo, strict=True):
        torch.testing.assert_close(results[request.request_id].output, alone, atol=1e-4, rtol=0)


def test_an_abort_in_mid_run_frees_its_state_and_leaves_the_others(engine: Any) -> None:
    alone = run(engine, make_request(0, 24)).output
    kept, aborted = make_request(0, 24), make_request(1, 24)
    results = drive(engine, {0: [kept, aborted]}, aborts={7: [aborted.request_id]})
    torch.testing.assert_close(results[kept.request_id].output, alone, atol=1e-4, rtol=0)
    assert aborted.request_id not in results
    # The engine reports a finished request to its worker with the next wave.
    run(engine, make_request(2, 4))
    assert set(runner_of(engine).state_cache) <= {kept.request_id}


def test_a_transformer_that_fails_leaves_nothing_behind(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = run(engine, make_request(0, 24)).output
    transformer, calls = pipeline_of(engine).transformer, []

    def fail(*_: Any) -> None:
        calls.append(None)
        if len(calls) == 9:
            raise RuntimeError("out of memory")

    hook = transformer.register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            drive(engine, {0: [make_request(1, 24)]})
    finally:
        hook.remove()
    forget_requests(engine)
    torch.testing.assert_close(run(engine, make_request(0, 24)).output, alone, atol=1e-4, rtol=0)


def test_a_prompt_is_encoded_once(engine: Any) -> None:
    cache = runner_of(engine).cache_backend.prompts
    run(engine, make_request(2, 4))
    before = cache.stats()
    run(engine, make_request(2, 4))
    after = cache.stats()
    assert after["hits"] > before["hits"]
    assert (after["misses"], after["bypassed"]) == (before["misses"], before["bypassed"])


def test_requests_with_other_adapters_get_neither_forecasts_nor_embeddings_of_another(
    engine: Any, tmp_path: Path
) -> None:
    from vllm_omni.lora.request import LoRARequest

    adapter = LoRARequest("large", 7, str(save_adapter(tmp_path, seed=7)))
    sampling: tuple[dict[str, Any], ...] = ({}, {"lora_request": adapter}, {"lora_request": adapter, "lora_scale": 0.5})
    first = [run(engine, make_request(0, 24, **each)).output for each in sampling]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (first[one] - first[other]).abs().max() > 0.01
    for place in (2, 0, 1, 0):
        assert torch.equal(run(engine, make_request(0, 24, **sampling[place])).output, first[place])
    waiting = [make_request(0, 24, **each) for each in sampling]
    results = drive(engine, {2 * wave: [request] for wave, request in enumerate(waiting)})
    for request, alone in zip(waiting, first, strict=True):
        torch.testing.assert_close(results[request.request_id].output, alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "config",
    [{"backend": "easy_cache", "easy_thresh": 0.9}, {"backend": "error_control", "error_tolerance": 0.4}],
    ids=lambda config: config["backend"],
)
def test_named_caches_of_region_step(engine: Any, config: dict[str, Any]) -> None:
    with other_backend(engine, config) as backend:
        alone = [run(engine, make_request(which, steps)) for which, steps in ((0, 24), (1, 30))]
        joined = [make_request(0, 24), make_request(1, 30)]
        results = drive(engine, {0: [joined[0]], 3: [joined[1]]})
        assert backend.waves is not None
    for request, solo in zip(joined, alone, strict=True):
        assert 0 < solo.stage_durations["omnireuse_steps_reused"] < 30
        torch.testing.assert_close(results[request.request_id].output, solo.output, atol=1e-4, rtol=0)
