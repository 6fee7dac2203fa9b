"""Tuning, once it is ready, waits for the device no more often than the untuned default."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import omnireuse
from tests.helpers.tiny import Tiny

STEPS = 24
READING = ("tolist", "item", "numpy", "cpu", "__bool__", "__float__", "__int__")


class Reads(TorchDispatchMode):
    """Notes values that are read back, by what reads them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        for name in READING:
            patch.setattr(torch.Tensor, name, self._noting(name, getattr(torch.Tensor, name)))

    def _noting(self, name: str, original: Any) -> Any:
        def noted(tensor: torch.Tensor, *rest: Any, **named: Any) -> Any:
            self.found[name] += 1
            return original(tensor, *rest, **named)

        return noted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in {"equal", "is_nonzero", "nonzero"}:
            self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def reads_of(flux: Tiny) -> Counter[str]:
    with pytest.MonkeyPatch.context() as patch, Reads(patch) as reads:
        flux.run(steps=STEPS)
    return reads.found


def test_a_tuned_run_reads_as_often_as_an_untuned_one(flux: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on an accelerator: errors are measured where a policy needs them.
    monkeypatch.setattr("omnireuse.loop.branch_state.measures_errors", lambda strategy, _: strategy.policy.needs_error)
    with omnireuse.enable(flux.pipe, tune=False) as handle:
        untuned = reads_of(flux)
    assert handle.summary().reused_calls > 0
    with omnireuse.enable(flux.pipe, tune=2) as handle:
        flux.run(steps=STEPS, seed=0)
        flux.run(steps=STEPS, seed=1)
        assert handle.tuning.state == "ready"
        before = handle.summary().reused_calls
        tuned = reads_of(flux)
        assert handle.summary().reused_calls > before
    assert tuned == untuned
    assert sum(untuned.values()) > 0, "the noise levels, and the look at the end"
