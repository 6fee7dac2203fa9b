"""Weights that a trainer hands to vllm-omni's worker: what belongs to the former ones serves no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engines.tests.hosts.vllm_omni.conftest import IN_VLLM_OMNI, drive, make_request, pipeline_of, run, running_engine

pytestmark = IN_VLLM_OMNI

KEY = "omnireuse"
EXTENSION = f"{__name__}.Trainer"


class Trainer:
    """An extension of the worker, as trainers have. It writes in a way that torch does not count."""

    model_runner: Any

    def scale_weights(self, part: str, factor: float) -> None:
        for parameter in getattr(self.model_runner.pipeline, part).parameters():
            parameter.data.mul_(factor)


def scale(engine: Any, part: str, factor: float) -> None:
    engine.executor.collective_rpc("scale_weights", args=(part, factor))


def engine_of(model: Path, **options: Any) -> Any:
    common = {"enforce_eager": True, "cache_backend": KEY, "worker_extension_cls": EXTENSION}
    return running_engine(model, **common, **options)


@pytest.mark.parametrize("steps", [False, True], ids=["request mode", "step mode"])
def test_plans_belong_to_the_weights_that_an_engine_has(
    tiny_qwen: Path, monkeypatch: pytest.MonkeyPatch, steps: bool
) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    with engine_of(tiny_qwen, max_num_seqs=1, step_execution=steps) as engine:
        for seed in range(2):
            figures = run(engine, make_request(0, 24, seed=seed)).stage_durations
        assert figures["omnireuse_pictures_measured"] == 2
        scale(engine, "transformer", 0.75)
        full = run(engine, make_request(0, 24, seed=3, reuse="off")).output
        anew = run(engine, make_request(0, 24, seed=3))
        assert anew.stage_durations["omnireuse_pictures_measured"] == 1
        assert torch.equal(anew.output, full)
        scale(engine, "transformer", 4 / 3)


def test_prompts_are_encoded_by_the_weights_that_an_engine_has(tiny_qwen: Path) -> None:
    options = {"cache_config": {"speedup": 2, "prompt_cache": 8}, "max_num_seqs": 1, "step_execution": True}
    with engine_of(tiny_qwen, **options) as engine:
        before = [run(engine, make_request(0, 24)).output for _ in range(2)]
        assert torch.equal(*before)
        scale(engine, "text_encoder", 1.5)
        after = run(engine, make_request(0, 24)).output
        assert not torch.equal(after, before[0])


def test_a_request_that_is_on_its_way_forgets_what_it_has_of_the_former_weights(tiny_qwen: Path) -> None:
    with engine_of(tiny_qwen, max_num_seqs=1, step_execution=True, cache_config={"speedup": 2}) as engine:
        request = make_request(0, 24)
        computed: list[int] = []
        transformer = pipeline_of(engine).transformer
        steps = iter(range(24))
        step = 0

        def count(*_: object) -> None:
            if not computed or computed[-1] != step:
                computed.append(step)

        hook = transformer.register_forward_pre_hook(count)
        engine.scheduler.add_request(request)
        for step in steps:
            if step == 13:
                scale(engine, "transformer", 1.0)
            scheduled = engine.scheduler.schedule()
            engine.scheduler.update_from_output(scheduled, engine.execute_fn(scheduled))
        hook.remove()
        assert 13 in computed
        assert 14 in computed
        drive(engine, {})
