"""The contract of methods, from outside of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from omnireuse.errors import ConfigError, StateError, UnsupportedModelError
from omnireuse_lab import check_method
from omnireuse_lab.compare.harness import Harness
from omnireuse_lab.compare.methods import METHODS
from omnireuse_lab.compare.methods.base import Kept, Method, Setting
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.peers import PEERS
from tests.helpers.sweep import sweep

ARGUMENTS = {"height": 64, "width": 64, "max_sequence_length": 20}


def check(images: Callable[..., Workload], method: Method) -> None:
    calibration = ["a blue square", "a green star"]
    check_method(method, images().pipeline, "a red circle", steps=6, most=1, calibration=calibration, **ARGUMENTS)


def method_of(enable: Callable[[Any], Any]) -> Method:
    setting = Setting(settings={}, call="mine(pipe)", enable=contextmanager(enable))
    return Method(key="mine", name="mine", family="peer", grid=lambda _: [setting])


OURS = ["fewer-steps", "default-call", "taylorseer", "scm", "diffusers-sea-cache"]


@pytest.mark.parametrize(
    "key", sweep([*OURS, "db-cache-dmd", "db-cache-foca", *PEERS], quick=[*OURS, "speca", "mean-cache"])
)
def test_methods_and_peers_keep_the_contract(images: Callable[..., Workload], key: str) -> None:
    check(images, {**METHODS, **PEERS}[key])


def test_a_method_that_calibrates_itself_asks_for_prompts(images: Callable[..., Workload]) -> None:
    with Harness(images(steps=3)) as harness, pytest.raises(UnsupportedModelError, match="give calibration_prompts"):
        list(PEERS["mean-cache"].grid(harness))


def test_no_prompt_is_both_calibrated_on_and_compared(images: Callable[..., Workload]) -> None:
    workload = images()
    with pytest.raises(ConfigError, match="must hold none of the prompts that are compared"):
        replace(workload, calibration=workload.prompts[:1])


def test_broken_methods_are_found(images: Callable[..., Workload]) -> None:
    def fails(pipeline: Any) -> Iterator[Kept]:
        raise ValueError("not today")
        yield lambda: 0

    def random(pipeline: Any) -> Iterator[Kept]:
        inner = pipeline.transformer.forward
        pipeline.transformer.forward = lambda *a, **k: tuple(x + torch.randn_like(x) for x in inner(*a, **k))
        yield lambda: 0

    def careless(pipeline: Any) -> Iterator[Kept]:
        with torch.no_grad():
            pipeline.transformer.x_embedder.weight.mul_(1.01)
        yield lambda: 0

    with pytest.raises(AssertionError, match="failed: ValueError: not today"):
        check(images, method_of(fails))
    with pytest.raises(AssertionError, match="must give the same picture when enabled again"):
        check(images, method_of(random))
    weight = images().pipeline.transformer.x_embedder.weight
    before = weight.detach().clone()
    with pytest.raises(StateError, match="left the pipeline changed"):
        check(images, method_of(careless))
    with torch.no_grad():
        weight.copy_(before)
