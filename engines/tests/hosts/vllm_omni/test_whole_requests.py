"""vllm-omni's request mode, native pipelines and the diffusers format, and what a server refuses at start-up."""

from __future__ import annotations

import asyncio
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.tests.hosts.vllm_omni.conftest import (
    IN_VLLM_OMNI,
    SHAPES_FLUX,
    drive,
    make_request,
    pipeline_of,
    run,
    runner_of,
    running_engine,
)
from engines.tests.hosts.vllm_omni.tiny_qwen import save_adapter

pytestmark = IN_VLLM_OMNI

KEY = "omnireuse"
NAMED: tuple[dict[str, Any], ...] = (
    {"backend": "taylorseer"},
    {"backend": "db_cache", "residual_diff_threshold": 0.95},
)
"""One of region "call" and one of "tail"."""


def whole(engine: Any, request: Any) -> Any:
    result = engine.add_req_and_wait_for_response(request)
    assert result.error is None, result.error
    return result


def test_requests_of_different_lengths_and_settings_one_after_the_other(
    tiny_qwen: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from omnireuse_engines.host import warn_once

    warn_once.cache_clear()  # another test of this process may have been told
    lengths = (24, 30)
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=1) as engine:
        plain = {steps: whole(engine, make_request(0, steps)).output for steps in lengths}
        # Nobody reads what a request asks for there. vllm's logger does not hand records on to pytest's.
        logging.getLogger(KEY).addHandler(caplog.handler)
        for steps in lengths:
            assert torch.equal(whole(engine, make_request(0, steps, reuse={"speedup": 3})).output, plain[steps])
        logging.getLogger(KEY).removeHandler(caplog.handler)
        said = {id(record) for record in caplog.records if "this server serves none" in record.getMessage()}
        assert len(said) == 1
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=1, cache_backend=KEY) as engine:
        for steps in lengths:
            assert torch.equal(whole(engine, make_request(0, steps, reuse="off")).output, plain[steps])
            half = whole(engine, make_request(0, steps))
            third = whole(engine, make_request(0, steps, reuse={"speedup": 3}))
            assert half.stage_durations["omnireuse_steps_computed"] == steps / 2
            assert third.stage_durations["omnireuse_steps_reused"] == steps * 2 / 3
            assert not torch.equal(half.output, plain[steps])


@pytest.fixture
def _tunes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock


def reused(result: Any) -> int:
    return int(result.stage_durations["omnireuse_steps_reused"])


@pytest.mark.usefixtures("_tunes")
def test_the_first_requests_are_measured_and_the_others_follow_one_plan(tiny_qwen: Path) -> None:
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=1) as engine:
        plain = [whole(engine, make_request(0, 24, seed=seed)).output for seed in range(3)]
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=1, cache_backend=KEY) as engine:
        for seed in range(3):
            result = whole(engine, make_request(0, 24, seed=seed))
            assert torch.equal(result.output, plain[seed])
            assert result.stage_durations["omnireuse_pictures_measured"] == seed + 1
            assert result.stage_durations["omnireuse_tuned"] == (seed == 2)
            # Requests beside them that ask for something else are not measured, and measuring goes on after them.
            other = whole(engine, make_request(0, 24, seed=9, reuse={"speedup": 3}))
            assert reused(other) == 16
            assert "omnireuse_tuned" not in other.stage_durations
        first = whole(engine, make_request(0, 24, seed=3))
        assert (reused(first), first.stage_durations["omnireuse_tuned"]) == (12, 1)
    # Another process finds the plan.
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=1, cache_backend=KEY) as engine:
        again = whole(engine, make_request(0, 24, seed=3))
        assert again.stage_durations["omnireuse_tuned"] == 1
        assert torch.equal(again.output, first.output)


@pytest.mark.usefixtures("_tunes")
def test_step_mode_follows_a_plan_that_request_mode_has_tuned(tiny_qwen: Path) -> None:
    sampling = {"guidance": 1.0}
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=1, cache_backend=KEY) as engine:
        for seed in range(3):
            whole(engine, make_request(0, 24, seed=seed, **sampling))
        tuned = whole(engine, make_request(0, 24, seed=3, **sampling))
        assert tuned.stage_durations["omnireuse_tuned"] == 1
    options = {"max_num_seqs": 3, "step_execution": True, "cache_backend": KEY}
    with running_engine(tiny_qwen, enforce_eager=True, **options) as engine:
        found = run(engine, make_request(0, 24, seed=3, **sampling))
        assert (reused(found), found.stage_durations["omnireuse_tuned"]) == (reused(tuned), 1)
        torch.testing.assert_close(found.output, tuned.output, atol=1e-4, rtol=0)
        joined = [make_request(0, 24, seed=3, **sampling), make_request(0, 24, seed=4, reuse="off", **sampling)]
        results = drive(engine, {0: [joined[0]], 3: [joined[1]]})
        torch.testing.assert_close(results[joined[0].request_id].output, found.output, atol=1e-4, rtol=0)
        untuned = run(engine, make_request(0, 24, seed=3, reuse={"speedup": 2}, **sampling))
        assert reused(untuned) == 12
        assert "omnireuse_tuned" not in untuned.stage_durations


@pytest.mark.usefixtures("_tunes")
def test_step_mode_measures_its_first_requests_and_tunes(tiny_qwen: Path) -> None:
    options = {"enforce_eager": True, "max_num_seqs": 3, "step_execution": True}
    with running_engine(tiny_qwen, **options) as engine:
        plain = [run(engine, make_request(0, 24, seed=seed)).output for seed in range(3)]
    with running_engine(tiny_qwen, cache_backend=KEY, **options) as engine:
        for seed in range(3):
            result = run(engine, make_request(0, 24, seed=seed))
            assert torch.equal(result.output, plain[seed])
            assert (reused(result), result.stage_durations["omnireuse_tuned"]) == (0, 0)
        # Trial runs are made between the waves of others, which the untuned default serves meanwhile.
        waiting = [make_request(0, 24, seed=seed) for seed in range(3, 15)]
        results = drive(engine, {12 * number: [each] for number, each in enumerate(waiting)})
        tuned = [results[each.request_id].stage_durations.get("omnireuse_tuned", 0.0) for each in waiting]
        assert tuned == sorted(tuned)
        assert (tuned[0], tuned[-1]) == (0, 1)
        assert all(reused(result) == 12 for result in results.values())
        first = run(engine, make_request(0, 24, seed=3))
        assert first.stage_durations["omnireuse_tuned"] == 1
    with running_engine(tiny_qwen, cache_backend=KEY, **options) as engine:
        again = run(engine, make_request(0, 24, seed=3))
        assert again.stage_durations["omnireuse_tuned"] == 1
        assert torch.equal(again.output, first.output)


def test_named_caches_and_a_change_of_adapter(tiny_qwen: Path, tmp_path: Path) -> None:
    from vllm_omni.lora.request import LoRARequest

    adapter = LoRARequest("large", 7, str(save_adapter(tmp_path, seed=7)))
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=1) as engine:
        plain = whole(engine, make_request(0, 24)).output
        adapted = whole(engine, make_request(0, 24, lora_request=adapter)).output
    assert (plain - adapted).abs().max() > 0.01
    for config in NAMED:
        options = {"cache_backend": KEY, "cache_config": config}
        with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=1, **options) as engine:
            reused = whole(engine, make_request(0, 24))
            with_adapter = whole(engine, make_request(0, 24, lora_request=adapter))
            assert 0 < reused.stage_durations["omnireuse_steps_reused"] < 24, config
            assert (reused.output - with_adapter.output).abs().max() > 0.01
            assert torch.equal(whole(engine, make_request(0, 24)).output, reused.output), config
            for request, expected in (({}, plain), ({"lora_request": adapter}, adapted)):
                off = whole(engine, make_request(0, 24, reuse="off", **request))
                assert torch.equal(off.output, expected), config


def test_prompts_are_shared_between_workers_through_redis(tiny_qwen: Path, redis_url: str) -> None:
    options = {"cache_backend": KEY, "cache_config": {"prompt_store": redis_url}}
    outputs, stats = [], []
    for _ in range(2):
        with running_engine(tiny_qwen, enforce_eager=True, **options) as engine:
            cache = runner_of(engine).cache_backend.prompts
            outputs.append(whole(engine, make_request(0, 4)).output)
            stats.append(cache.stats())
    assert torch.equal(*outputs)
    assert stats[0]["misses"] > 0
    assert stats[1]["misses"] == 0, stats


def test_the_diffusers_format(platform: None) -> None:
    options = {"diffusion_load_format": "diffusers", "diffusers_call_kwargs": {"max_sequence_length": 20}}
    request = {"guidance": 6.0, "output_type": "pil"}
    profile = {"profile": str(SHAPES_FLUX / "profiles" / "shapes-flux-28-guided.json")}
    with running_engine(SHAPES_FLUX, **options, cache_backend=KEY, cache_config=profile) as engine:
        assert type(pipeline_of(engine)).__name__ == "DiffusersAdapterPipeline"

        async def answer() -> Any:
            last = None
            async for outputs in engine.step_streaming(make_request(0, 28, **request)):
                last = outputs
            assert last is not None
            return last[0]

        response = asyncio.run(answer())
    assert response.metrics["omnireuse_steps_computed"] == response.metrics["omnireuse_steps_reused"] == 14
    assert response.metrics["omnireuse_expected_psnr_db"] > 40
    assert response.stage_durations["omnireuse_steps_computed"] == 14
    assert response.custom_output[KEY]["omnireuse_strategy"]


def test_a_cache_that_its_pipeline_cannot_serve_stops_the_server_from_starting(tiny_qwen: Path) -> None:
    config = {"backend": "tea_cache", "coefficients": [0.0, 0.0, 0.0, 1.0, 0.0]}
    with (
        pytest.raises(ValueError, match="watches the modulated input"),
        running_engine(tiny_qwen, enforce_eager=True, cache_backend=KEY, cache_config=config),
    ):
        pass


def test_a_server_whose_pipeline_waves_cannot_serve_does_not_start(
    tiny_qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnireuse_engines.vllm_omni import admission

    monkeypatch.setattr(admission, "SAFE", ())
    with (
        pytest.raises(ValueError, match=r"a step of QwenImagePipeline is not known to be safe .* \(denoise_step\)"),
        running_engine(tiny_qwen, enforce_eager=True, step_execution=True, cache_backend=KEY),
    ):
        pass
