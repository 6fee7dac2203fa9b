"""vllm-omni's own parallel groups in two worker processes: one decision, the picture of one rank, and no deadlock."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.tests.hosts.vllm_omni.conftest import IN_VLLM_OMNI, drive, make_request, run, running_engine

pytestmark = IN_VLLM_OMNI

LOCAL = {"backend": "taylorseer"}
"""Forecasts each branch of guidance by itself."""
TOLERANCE = {"tolerance": 0.4}
SERVED: tuple[tuple[int, int, object], ...] = ((0, 24, "off"), (0, 24, "on"), (0, 24, TOLERANCE), (1, 30, TOLERANCE))
"""Prompt, steps and what the request asks for."""
LIMIT = 60
"""Seconds after which vllm-omni calls ranks stuck."""


@pytest.fixture(autouse=True)
def _forking_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers, which vllm-omni spawns: a spawned one spends half a minute on imports, and they come before the
    stand-in for torchvision's operators."""
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda *_, **__: None)
    from vllm_omni.diffusion.executor import multiproc_executor

    monkeypatch.setattr(multiproc_executor, "_DLO_DP_WAVE_TIMEOUT_S", LIMIT)


def open_engine(model: Path, **parallel: int) -> Any:
    from vllm_omni.diffusion.data import DiffusionParallelConfig

    ranks = {"num_gpus": 2, "parallel_config": DiffusionParallelConfig(**parallel)} if parallel else {}
    return running_engine(
        model,
        enforce_eager=True,
        max_num_seqs=3,
        step_execution=True,
        cache_backend="omnireuse",
        worker_extension_cls="engines.tests.hosts.vllm_omni.probe.Probe",
        **ranks,
    )


def ask(engine: Any, method: str, *arguments: Any) -> Any:
    return engine.executor.collective_rpc(
        method, args=arguments, unique_reply_rank=0, exec_all_ranks=True, timeout=LIMIT
    )


def whole(engine: Any, request: Any) -> Any:
    """The result of one request in request mode, which the same workers serve."""
    return ask(engine, "execute_model", request, engine.od_config, None)


def figures(result: Any) -> tuple[float, float]:
    assert result.error is None
    kept = result.stage_durations
    return kept.get("omnireuse_steps_computed"), kept.get("omnireuse_steps_reused")


@pytest.fixture(scope="module")
def alone(tiny_qwen: Path) -> dict[str, Any]:
    """What one rank makes of the same requests."""
    with open_engine(tiny_qwen) as engine:
        found = {
            "waves": [run(engine, make_request(which, steps, reuse=asked)) for which, steps, asked in SERVED],
            "whole": [whole(engine, make_request(which, steps, reuse=asked)) for which, steps, asked in SERVED],
        }
        ask(engine, "start_other_backend", LOCAL)
        return found | {"local": whole(engine, make_request(0, 24))}


@pytest.mark.parametrize(
    ("parallel", "calls", "end"),
    [({"cfg_parallel_size": 2}, 1, "raises"), ({"ulysses_degree": 2}, 2, "dies"), ({"tensor_parallel_size": 2}, 2, "")],
)
def test_ranks_decide_alike_and_make_the_picture_of_one(
    tiny_qwen: Path, alone: dict[str, Any], parallel: dict[str, int], calls: int, end: str
) -> None:
    with open_engine(tiny_qwen, **parallel) as engine:
        ask(engine, "watch_rank", 1)
        for mode, serve in (("waves", run), ("whole", whole)):
            for (which, steps, asked), expected in zip(SERVED, alone[mode], strict=True):
                before = ask(engine, "calls_so_far")
                result = serve(engine, make_request(which, steps, reuse=asked))
                assert figures(result) == figures(expected), (mode, asked)
                torch.testing.assert_close(result.output, expected.output, atol=1e-3, rtol=0)
                computed = steps if asked == "off" else int(figures(result)[0])
                after = ask(engine, "calls_so_far")
                assert [now - then for now, then in zip(after, before, strict=True)] == [calls * computed] * 2
        assert 0 < figures(alone["waves"][2])[1] < 24

        joining, aborted, kept = (
            make_request(which, steps, reuse=TOLERANCE) for which, steps in ((1, 30), (2, 24), (0, 24))
        )
        results = drive(engine, {0: [kept, aborted], 3: [joining]}, aborts={9: [aborted.request_id]})
        for request, expected in ((kept, alone["waves"][2]), (joining, alone["waves"][3])):
            torch.testing.assert_close(results[request.request_id].output, expected.output, atol=1e-3, rtol=0)
        run(engine, make_request(2, 4))
        names = ask(engine, "requests_kept")
        assert names[0] == names[1]
        assert aborted.request_id not in names[0]

        if "cfg_parallel_size" in parallel:
            _each_rank_forecasts_its_own_branch(engine, alone["local"])
        if "tensor_parallel_size" in parallel:
            with pytest.raises(RuntimeError, match=r"share a text encoder \(tensor_parallel_size=2\)"):
                ask(engine, "start_other_backend", {"prompt_store": "redis://localhost:1/0"})
        if end:
            ask(engine, "start_other_backend", {})
            ask(engine, "lose_rank", 1, end)
            with pytest.raises(Exception, match=r"timed out|EngineCore encountered|[Cc]onnection"):
                run(engine, make_request(0, 24, reuse=TOLERANCE))


def _each_rank_forecasts_its_own_branch(engine: Any, expected: Any) -> None:
    with pytest.raises(RuntimeError, match="its branches of guidance decide together, and CFG parallelism"):
        ask(engine, "start_other_backend", {"backend": "db_cache"})
    ask(engine, "start_other_backend", LOCAL)
    before = ask(engine, "calls_so_far")
    result = whole(engine, make_request(0, 24))
    assert figures(result) == figures(expected)
    torch.testing.assert_close(result.output, expected.output, atol=1e-3, rtol=0)
    after = ask(engine, "calls_so_far")
    assert [now - then for now, then in zip(after, before, strict=True)] == [figures(result)[0]] * 2
