"""ComfyUI's own torch.compile beside reuse: its graph serves computed steps, and none is added."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch._dynamo

from engines.tests.hosts.comfyui.conftest import IN_COMFYUI
from omnireuse_engines.comfyui import attach, plan_for, reuse_of

pytestmark = IN_COMFYUI


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("is_before", [True, False])
def test_nothing_compiles_again(host: ModuleType, model: Any, is_before: bool) -> None:
    from comfy_api.torch_helpers import set_torch_compile_wrapper
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    full, expected = host.sample(model), host.sample(attach(model, plan_for(speedup=2.0)))
    compiled = model.clone()
    set_torch_compile_wrapper(compiled, backend=counter)
    assert torch.equal(host.sample(compiled), full)
    graphs = counter.frame_count
    assert graphs > 0
    if is_before:
        both = attach(compiled, plan_for(speedup=2.0))
    else:
        both = attach(model, plan_for(speedup=2.0))
        set_torch_compile_wrapper(both, backend=counter)
    for _ in range(2):
        assert torch.equal(host.sample(both), expected)
    assert reuse_of(both).summary().reused_calls > 0
    assert counter.frame_count == graphs
    assert torch.equal(host.sample(compiled), full)
    assert counter.frame_count == graphs
