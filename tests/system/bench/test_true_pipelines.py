"""Whole diffusers pipelines of true width on a device without data: from a prompt to latents or a picture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

import omnireuse
from bench._fake_device import HostReads, fake_device
from bench._true_pipelines import PIPELINES
from bench.memory import fitted
from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from omnireuse.loop.strategy import REGIONS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),  # the prompt cache notes addresses
]
STEPS = 6
HALF = {"policy": omnireuse.EveryNth(every=2), "forecaster": "blend"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "computed_steps": {"computed_steps": 4},
    **{region: HALF | {"region": region} for region in REGIONS},
    "mag_cache": {"backend": "mag_cache"},
    "taylorseer": {"backend": "taylorseer", "taylorseer_warmup_steps": 2},
}
MEASURED: dict[str, dict[str, Any]] = {
    "tolerance": {"tolerance": 0.05},
    "tea_cache": {"backend": "tea_cache", "rel_l1_thresh": 0.9},
    "db_cache": {"backend": "db_cache", "max_warmup_steps": 2},
    "easy_cache": {"backend": "easy_cache", "easy_warmup_steps": 2},
}
"""Policies that measure: one read a decision at most, EasyCache up to three."""


@contextmanager
def made(name: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    with fake_device() as device, torch.no_grad():
        yield PIPELINES[name](device)


def run(pipe: Any, call: dict[str, Any], output: str = "latent") -> HostReads:
    with HostReads() as reads:
        (result,) = pipe("a cat", num_inference_steps=STEPS, output_type=output, return_dict=False, **call)
    assert result.device == pipe._execution_device
    return reads


@pytest.mark.parametrize("name", PIPELINES)
def test_a_schedule_waits_for_the_device_once_a_run(name: str) -> None:
    plan = fitted(STEPS)
    apart = replace(plan, weights=plan.weights * (2 if name == "wan2.1-14b" else 1))
    plans = {
        "tuned": {"policy": omnireuse.Steps(steps=plan.computed), "forecaster": plan},
        "calibrated": {"policy": omnireuse.Steps(steps=plan.computed), "forecaster": apart, "region": "call"},
    }
    with made(name) as (pipe, call):
        full = run(pipe, call)
        assert full.count == 0
        for label, choice in (SCHEDULES | plans).items():
            with omnireuse.enable(pipe, **choice) as handle:
                reads = run(pipe, call)
            summary = handle.summary()
            assert summary.reused_calls > 0, label
            assert reads.count == 1, f"{label}: the look at the end, and {reads.where}"
            assert reads.operations < full.operations, label
            if label in ("computed_steps", "step"):
                # Two values and a stand-in for the output of each branch, in float32.
                kept = 3 * 16 * 128 * 128 if name == "flux.1" else 4 * 16 * 21 * 60 * 104
                assert summary.kept_bytes == pytest.approx(4 * kept, rel=0.01)
        with omnireuse.enable(pipe, policy="never"):
            assert run(pipe, call).count == 1
        assert run(pipe, call).operations == full.operations


@pytest.mark.parametrize("name", PIPELINES)
def test_what_measures_waits_as_often_as_the_docs_say(name: str) -> None:
    with made(name) as (pipe, call):
        for label, choice in MEASURED.items():
            with omnireuse.enable(pipe, **choice) as handle:
                reads = run(pipe, call)
            decisions = handle.summary().calls
            assert handle.summary().reused_calls > 0, label
            assert 1 < reads.count <= decisions * (3 if label == "easy_cache" else 1) + 1, label


def test_a_cached_prompt_takes_no_operation_and_a_picture_no_read() -> None:
    with made("flux.1") as (pipe, call):
        cache = install_prompt_embed_cache(pipe)
        assert cache is not None
        run(pipe, call, "pt")
        assert run(pipe, call, "pt").count == 0
        assert (cache.misses, cache.hits, cache.bypassed) == (1, 1, 0)
        with HostReads() as hit:
            pipe.encode_prompt("a cat", None)
        assert (cache.hits, hit.operations) == (2, 0)
