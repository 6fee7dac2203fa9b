"""The contract of methods, from outside of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from omnireuse.errors import StateError
from omnireuse.evaluation.compare.methods import METHODS
from omnireuse.evaluation.compare.methods.base import Kept, Method, Setting
from omnireuse.evaluation.compare.workload import Workload
from omnireuse.testing import check_method

ARGUMENTS = {"height": 64, "width": 64, "max_sequence_length": 20}


def check(images: Callable[..., Workload], method: Method) -> None:
    check_method(method, images().pipeline, "a red circle", steps=4, most=1, **ARGUMENTS)


def method_of(enable: Callable[[Any], Any]) -> Method:
    setting = Setting(settings={}, call="mine(pipe)", enable=contextmanager(enable))
    return Method(key="mine", name="mine", family="peer", grid=lambda _: [setting])


@pytest.mark.parametrize("key", ["fewer-steps", "default-call", "taylorseer", "scm", "diffusers-sea-cache"])
def test_methods_keep_the_contract(images: Callable[..., Workload], key: str) -> None:
    check(images, METHODS[key])


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
