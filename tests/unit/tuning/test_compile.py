"""Tuning of a compiled model: its graphs serve full pictures, trial runs and the plan."""

from __future__ import annotations

import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

import omnireuse
from tests.helpers.tiny import Tiny

STEPS = 24


def test_nothing_compiles_again(flux: Tiny) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    flux.pipe.transformer.compile(backend=counter, fullgraph=True)
    full = [flux.run(steps=STEPS, seed=seed) for seed in range(3)]
    with omnireuse.enable(flux.pipe) as handle:
        made = [flux.run(steps=STEPS, seed=seed) for seed in (0, 1, 2, 2)]
        assert handle.tuning.state == "ready"
    assert [torch.equal(*pair) for pair in zip(made, [*full, full[2]], strict=True)] == [True] * 3 + [False]
    assert counter.frame_count == 1
    torch._dynamo.reset()
