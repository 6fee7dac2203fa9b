from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from omnireuse.errors import ConfigError, UnsupportedModelError
from omnireuse_lab.compare.methods import METHODS
from omnireuse_lab.compare.methods.base import Kept, Method, Setting
from omnireuse_lab.compare.methods.baselines import stronger_solver
from omnireuse_lab.compare.restore import restored
from omnireuse_lab.compare.run import compare
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.peers import PEERS
from tests.helpers.sweep import sweep

Make = Callable[..., Workload]


ALL = {**METHODS, **PEERS}
# One that computes fewer steps, one of each library, and the default.
KEEPS = ("mag-cache", "first-block-cache", "taylorseer", "db-cache-taylor")
QUICK = ("fewer-steps", "mag-cache", "db-cache", "default")


def short(method: Method, count: int = 2) -> Method:
    return replace(method, grid=lambda harness: islice(method.grid(harness), count))


def one(enable: Callable[..., Any], **given: Any) -> Method:
    return Method(
        key="one",
        name="one",
        family="peer",
        grid=lambda _: [Setting(**{"settings": {}, "call": "one(pipe)", "enable": enable, **given})],
    )


# Those of other papers are run by test_contract.
@pytest.mark.parametrize("key", sweep(METHODS, quick=QUICK))
def test_every_method_runs_on_images(images: Make, key: str) -> None:
    # Methods that calibrate themselves need prompts beside the compared ones.
    workload = replace(images(steps=6, prompts=1), calibration=("a blue square", "a green star"))
    case = compare(workload, [short(METHODS[key], 1)])
    assert case.points
    for point in case.points:
        if key == "diffusers-sea-cache":
            assert point.error is not None
            assert "serves Wan and Cosmos 3" in point.error
            continue
        assert point.error is None
        assert point.computed_steps is not None
        assert point.psnr is not None
        assert 0 < point.computed_steps <= 6
        assert 5 < point.psnr.mean <= 100
        assert 0 <= point.scores["attributes right"].mean <= 1
        assert len(point.each) == 1
        # Two branches, at least one residual of 64 tokens each, or one output.
        assert key not in KEEPS or (point.kept_bytes or 0) >= 2 * 64 * 32 * 4


@pytest.mark.parametrize(
    "key",
    sweep(["diffusers-sea-cache", "db-cache-taylor", "mag-cache", "unipc"], quick=["mag-cache"]),
)
def test_peers_run_on_clips_without_guidance(clips: Make, key: str) -> None:
    case = compare(clips(steps=8, guidance=1.0, prompts=1), [short(METHODS[key])])
    assert [point.error for point in case.points] == [None] * len(case.points)


def test_methods_run_on_a_u_net_or_say_why_not(unet_images: Make) -> None:
    methods = [short(ALL[key], 1) for key in ("default", "l2p", "mean-cache")]
    case = compare(unet_images(steps=8, prompts=1, calibration=1), methods)
    errors = [point.error for point in case.points]
    assert errors[:2] == [None, None]
    assert "DDIMScheduler lists none" in (errors[2] or "")


def test_a_failing_method_is_listed_and_logged_and_the_others_go_on(
    images: Make, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def broken(pipeline: Any) -> Iterator[Kept]:
        pipeline.transformer.x_embedder.forward = lambda *_: 1 / 0
        yield lambda: None

    with caplog.at_level(logging.WARNING, "omnireuse"):
        case = compare(images(prompts=1), [one(broken), short(METHODS["fewer-steps"], 1)])
    assert case.points[0].error == "ZeroDivisionError: division by zero"
    assert case.points[0].psnr is None
    assert case.points[1].error is None
    assert "one failed: division by zero" in caplog.text


def test_whatever_is_done_to_a_pipeline_is_undone(images: Make) -> None:
    pipeline = images().pipeline
    kind, block = type(pipeline), pipeline.transformer.transformer_blocks[0]
    call, scheduler, order = kind.__call__, pipeline.scheduler, list(pipeline.transformer._modules)
    with restored(pipeline):
        kind.__call__ = lambda self: None
        kind.mark = True
        pipeline.scheduler = stronger_solver(scheduler, "UniPCMultistepScheduler")
        pipeline.mark = True
        block.__class__ = type("Other", (type(block),), {})
        block.register_forward_pre_hook(lambda *_: None)
        pipeline.transformer._modules["x_embedder"] = pipeline.transformer._modules.pop("x_embedder")
        scheduler.shift_twice = True
    assert kind.__call__ is call
    assert pipeline.scheduler is scheduler
    assert not hasattr(pipeline, "mark")
    assert type(block).__name__ == "FluxTransformerBlock"
    assert not block._forward_pre_hooks
    assert list(pipeline.transformer._modules) == order
    assert not hasattr(scheduler, "shift_twice")


def test_pictures_that_are_not_finite_count_as_nothing_alike(images: Make) -> None:
    @contextmanager
    def poisoned(pipeline: Any) -> Iterator[Kept]:
        inner = pipeline.image_processor.postprocess

        def postprocess(*args: Any, **kwargs: Any) -> Any:
            return np.full_like(inner(*args, **kwargs), np.nan)

        pipeline.image_processor.postprocess = postprocess
        try:
            yield lambda: None
        finally:
            del pipeline.image_processor.postprocess

    (point,) = compare(replace(images(prompts=1), scores={}), [one(poisoned)]).points
    assert point.error is None
    assert point.each == (0.0,)


def test_a_solver_for_another_kind_of_noise_is_refused() -> None:
    from diffusers import DDIMScheduler

    with pytest.raises(UnsupportedModelError, match="DDIMScheduler is not one of flow matching"):
        stronger_solver(DDIMScheduler(), "UniPCMultistepScheduler")


def test_a_workload_without_prompts_is_refused(images: Make) -> None:
    with pytest.raises(ConfigError, match="must hold at least one"):
        replace(images(), prompts=())
