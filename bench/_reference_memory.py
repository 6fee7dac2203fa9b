"""Bytes of the keys and values that each model keeps, at true size and with all blocks, on the fake device."""

from __future__ import annotations

import argparse
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

import omnireuse
from bench._common import Row, Rows
from bench._editing_size import EDITING, OTHERS, EditingSampler
from bench._fake_device import FakeSampler, fake_device
from omnireuse import EveryNth
from omnireuse.errors import StateError
from omnireuse.references import Declaration, References, Split

__all__ = ["measure"]

MODELS = EDITING | OTHERS


class _Fake(EditingSampler, FakeSampler):
    """Its tensors have no data."""


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Add what the record does not have."""
    for name in MODELS:
        key = {"part": "memory", "model": name, "references": 1}
        if options.size != "tiny" and not rows.like(key):
            rows.add(key | _kept(name))
            print(rows.record["rows"][-1], flush=True)


def _kept(name: str) -> Row:
    """The bytes that one full call of one branch keeps."""
    with fake_device() as device:
        sampler = _Fake.made(MODELS[name], size="true", device=device, dtype=torch.bfloat16)
        sampler.take(1)
        # What is read from tensors without data is made up: where references begin, and that nothing is NaN.
        split = Split(sampler.text, sampler.target, sampler.target)
        known = mock.patch.object(Declaration, "split", return_value=split)
        finite = mock.patch.object(FakeTensor, "tolist", lambda tensor: [0] * len(tensor))
        with known, finite, omnireuse.enable(sampler, policy=EveryNth(every=1), references=References()) as handle:
            sampler.run(1, _nothing)
            calls = handle.summary().references
        parameters = sum(weight.numel() for weight in sampler.transformer.parameters())
    if calls is None or calls.full != 1 or not calls.kept_bytes:
        raise StateError(f"{name}: nothing is kept: {handle.summary()}")
    return {"kept_bytes": calls.kept_bytes, "parameters": parameters}


def _nothing(_step: int) -> Any:
    return torch.no_grad()
