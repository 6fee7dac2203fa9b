"""A transformer that SGLang has compiled in place: its graphs serve computed steps, and none is added."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo

from engines.tests.hosts.sglang.conftest import IN_SGLANG, Server

pytestmark = IN_SGLANG


def picture(server: Server, **request: Any) -> torch.Tensor:
    made: torch.Tensor = server.pipeline.forward(server.request(**request), server.args).output
    return made


@pytest.mark.parametrize("half", [{"speedup": 2}, {"tolerance": 0.2}], ids=["schedule", "measured"])
def test_nothing_compiles_again(native: Server, half: object) -> None:
    from torch._dynamo.testing import CompileCounter

    full, expected = picture(native, steps=20), picture(native, steps=20, reuse=half)
    assert not torch.equal(expected, full)
    torch._dynamo.reset()
    counter = CompileCounter()
    native.transformer.compile(backend=counter)  # as SGLang does for --enable-torch-compile
    try:
        assert torch.equal(picture(native, steps=20), full)
        graphs = counter.frame_count
        assert graphs > 0
        for _ in range(2):
            assert torch.equal(picture(native, steps=20, reuse=half), expected)
        assert torch.equal(picture(native, steps=20), full)
        assert counter.frame_count == graphs
    finally:
        del native.transformer._compiled_call_impl
        torch._dynamo.reset()
