"""Tuning of SGLang's own pipelines on the first requests."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.tests.hosts.sglang.conftest import IN_SGLANG, Server

pytestmark = IN_SGLANG

Pictures = dict[tuple[str, int], torch.Tensor]


@pytest.fixture
def tuning(native: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process that has measured nothing, and its folder of plans."""
    from omnireuse_engines.sglang.hooks import REUSE

    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock
    REUSE._tuner = None
    yield tmp_path
    REUSE._tuner = None


def serve(server: Server, seed: int = 0, **sampling: Any) -> tuple[torch.Tensor, int, dict[str, Any]]:
    """The picture of a request, the calls of the transformer, and the figures of its response."""
    from sglang.multimodal_gen.runtime.utils.perf_logger import RequestMetrics

    seen: list[None] = []
    hook = server.transformer.register_forward_hook(lambda *_: seen.append(None))
    request = server.request(reuse="on", **{"seed": seed, **sampling})
    request.metrics = metrics = RequestMetrics("a")
    try:
        picture = server.pipeline.forward(request, server.args).output
    finally:
        hook.remove()
    assert "omnireuse" not in request.extra
    return picture, len(seen), metrics.to_dict()


def db(picture: torch.Tensor, full: torch.Tensor) -> float:
    return float(-10 * (picture - full).square().mean().log10())


def test_three_requests_are_measured_and_a_plan_serves_the_fourth(
    native: Server, plain: Pictures, tuning: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = {seed: native.calls(seed=seed, reuse="off")[0] for seed in (1, 2, 3)}
    with caplog.at_level(logging.INFO, "omnireuse"):
        for count, seed in enumerate((1, 2, 3), start=1):
            picture, calls, figures = serve(native, seed)
            assert torch.equal(picture, full[seed])
            assert calls == 2 * 28 if count == 1 else calls > 2 * 28
            assert figures["omnireuse_pictures_measured"] == (count if count < 3 else 3)
            assert figures["omnireuse_steps_computed"] == 28
    assert re.search("tuning has ended for calls with [^:]*: tuned", caplog.text)
    picture, calls, figures = serve(native, 0)
    assert calls == 2 * 14
    assert figures["omnireuse_strategy"] == "default, tuned"
    untuned, _ = native.calls(reuse={"computed_steps": 14})
    assert db(picture, plain["native", 28]) > db(untuned, plain["native", 28]) + 1
    assert list((tuning / "tuned").glob("*.json"))


def test_the_next_process_reuses_from_its_first_request_on(native: Server, tuning: Path) -> None:
    from omnireuse_engines.sglang.hooks import REUSE

    for seed in (1, 2, 3):
        serve(native, seed)
    known, _, _ = serve(native)
    REUSE._tuner = None
    picture, calls, figures = serve(native)
    assert calls == 2 * 14
    assert figures["omnireuse_tuned"] == 1
    assert torch.equal(picture, known)
