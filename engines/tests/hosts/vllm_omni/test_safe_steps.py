"""Which pipelines of vllm-omni a wave may leave steps out of: all with step execution are known, by their contract."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.tests.hosts.vllm_omni.conftest import (
    IN_VLLM_OMNI,
    make_request,
    pipeline_of,
    run,
    runner_of,
    running_engine,
)
from omnireuse_engines.vllm_omni.admission import SAFE, UNSAFE, refuse_pipeline

pytestmark = IN_VLLM_OMNI

STEPS = 6


@functools.cache
def stepping() -> dict[str, str]:
    """The module of each class of vllm-omni that has a `denoise_step` of its own and says that it can be stepped."""
    top = Path(str(import_module("vllm_omni").__file__)).parent
    found = {}
    for file in (top / "diffusion" / "models").rglob("*.py"):
        text = file.read_text("utf-8")
        for node in ast.parse(text).body if "def denoise_step" in text else ():
            if isinstance(node, ast.ClassDef) and _can_step(node):
                found[node.name] = ".".join((top.name, *file.relative_to(top).with_suffix("").parts))
    return found


def _can_step(node: ast.ClassDef) -> bool:
    names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    values = [
        each.value.value
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and each.target.id == "supports_step_execution"
        and isinstance(each.value, ast.Constant)
    ]
    is_protocol = any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
    return "denoise_step" in names and values == [True] and not is_protocol


def test_every_pipeline_with_step_execution_is_known() -> None:
    assert set(stepping()) == {*SAFE, *UNSAFE}
    assert len(stepping()) == 7


@pytest.mark.parametrize("name", sorted(UNSAFE))
def test_a_pipeline_whose_step_is_more_than_its_output_is_refused_with_the_reason(name: str) -> None:
    cls = getattr(import_module(stepping()[name]), name)
    with pytest.raises(
        ValueError, match=rf"a step of {name} is not known to be safe .*: {UNSAFE[name]} \(denoise_step"
    ):
        refuse_pipeline(object.__new__(cls))


def test_a_subclass_with_a_step_of_its_own_is_refused(engine: Any) -> None:
    from vllm_omni.diffusion.models.qwen_image.pipeline_qwen_image import QwenImageDMD2Pipeline

    class OwnScheduler(QwenImageDMD2Pipeline):
        def step_scheduler(self, *_: Any, **__: Any) -> None:
            self.extra = 1

    refuse_pipeline(pipeline_of(engine))
    refuse_pipeline(object.__new__(QwenImageDMD2Pipeline))
    with pytest.raises(ValueError, match=r"OwnScheduler .* it may do more than return its output \(step_scheduler"):
        refuse_pipeline(object.__new__(OwnScheduler))


@pytest.fixture(scope="module")
def engine(tiny_qwen: Path) -> Iterator[Any]:
    with running_engine(tiny_qwen, enforce_eager=True, max_num_seqs=3, step_execution=True) as engine:
        yield engine


def test_a_safe_step_changes_nothing_and_its_output_is_all_that_the_scheduler_takes(engine: Any) -> None:
    """Each step is computed twice, and then a run is given the outputs of another in place of its own."""
    pipeline, states = pipeline_of(engine), runner_of(engine).state_cache
    whole, outputs = pipeline.denoise_step, []

    def twice(batch: Any, **kwargs: Any) -> torch.Tensor:
        first = whole(batch, **kwargs).clone()
        kept = {name: _values(state) for name, state in states.items()}
        again = whole(batch, **kwargs)
        for name, state in states.items():
            assert _values(state) == kept[name]
        assert torch.equal(first, again)
        outputs.append(first)
        return again

    pipeline.denoise_step = twice
    try:
        result = run(engine, make_request(0, STEPS)).output
        pipeline.denoise_step = lambda batch, **_: outputs.pop(0).clone()  # a forecast that is never wrong
        replayed = run(engine, make_request(0, STEPS)).output
    finally:
        del pipeline.denoise_step
    assert not outputs
    assert torch.equal(result, replayed)


def _values(state: Any) -> dict[str, Any]:
    """A copy that compares equal where nothing has changed."""
    return {
        name: each.tolist() if isinstance(each, torch.Tensor) else copy.deepcopy(each)
        for name, each in vars(state).items()
        if isinstance(each, (torch.Tensor, int, float, str, dict, type(None))) and name != "sampling"
    }
