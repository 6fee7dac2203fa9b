"""Continuous batching in vllm-omni's step mode: every request equals its solo run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.tests.hosts.vllm_omni.conftest import (
    IN_VLLM_OMNI,
    drive,
    make_request,
    run,
    running_engine,
)
from engines.tests.hosts.vllm_omni.tiny_qwen import save_adapter

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


def test_off_equals_an_engine_without_a_cache_bit_for_bit(engine: Any, plain: dict[int, torch.Tensor]) -> None:
    for which, steps in ((0, 24), (1, 30)):
        assert torch.equal(run(engine, make_request(which, steps, reuse="off")).output, plain[which])


@pytest.mark.parametrize("wave", [1, 2, 5])
def test_requests_that_join_equal_their_solo_runs(engine: Any, wave: int) -> None:
    solo = [run(engine, make_request(0, 24)).output, run(engine, make_request(1, 30, reuse={"speedup": 3})).output]
    joined = [make_request(0, 24), make_request(1, 30, reuse={"speedup": 3})]
    results = drive(engine, {0: [joined[0]], wave: [joined[1]]})
    for request, alone in zip(joined, solo, strict=True):
        torch.testing.assert_close(results[request.request_id].output, alone, atol=1e-4, rtol=0)


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
