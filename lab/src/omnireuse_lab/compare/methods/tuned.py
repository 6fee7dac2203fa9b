"""The default after tuning: three pictures of other prompts are measured for each number of computed steps."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import omnireuse
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, call_text, lazily, reuse
from omnireuse_lab.compare.workload import Workload

__all__ = ["TUNED"]

SPEEDUPS = (1.4, 2.0, 3.0, 4.0)
PICTURES = 3


def _tune(work: Workload) -> dict[float, omnireuse.Profile]:
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, {"OMNIREUSE_CACHE_DIR": folder, "OMNIREUSE_TUNE": "1"}),
    ):
        return {
            speedup: omnireuse.tune(
                work.pipeline,
                work.prompts,
                speedup=speedup,
                seed=work.seed,
                progress=False,
                num_inference_steps=work.steps,
                **work.call,
            )
            for speedup in SPEEDUPS
        }


def _options(found: dict[float, omnireuse.Profile], speedup: float) -> dict[str, Any]:
    profile = found[speedup]
    (count,) = profile.plans
    if not profile.plans[count].weights:
        # The untuned default has proved to be as close.
        return {"speedup": speedup, "tune": False}
    return {"profile": profile, "computed_steps": count}


def _grid(subject: Subject) -> Iterator[Setting]:
    make = lazily(subject, PICTURES, _tune, _options)
    for speedup in SPEEDUPS:
        call = call_text("omnireuse.enable", "pipe", speedup=speedup)
        yield reuse("", make(speedup), call=call, speedup=speedup)


TUNED = Method(key="tuned", name=f"omnireuse, tuned on {PICTURES} pictures", family="ours", grid=_grid)
