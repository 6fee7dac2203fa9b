"""Requests in SGLang's diffusion pipelines, native and of diffusers."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from engines.tests.hosts.sglang.conftest import IN_SGLANG, Server

pytestmark = IN_SGLANG

Pictures = dict[tuple[str, int], torch.Tensor]


@pytest.mark.parametrize("reuse", [None, "off"])
def test_a_request_without_reuse_equals_an_sglang_without_the_plugin(
    server: Server, plain: Pictures, reuse: object
) -> None:
    picture, calls = server.calls(reuse=reuse)
    assert calls == 2 * 28
    assert torch.equal(picture, plain[server.name, 28])


def test_a_policy_that_never_reuses_equals_an_sglang_without_the_plugin(server: Server, plain: Pictures) -> None:
    picture, calls = server.calls(reuse={"computed_steps": 28})
    assert calls == 2 * 28
    assert torch.equal(picture, plain[server.name, 28])


def test_the_default_computes_half_of_the_steps(
    server: Server, plain: Pictures, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "omnireuse"):
        picture, calls = server.calls(reuse="on")
    assert calls == 2 * 14
    assert "omnireuse computed 14 of 28 steps" in caplog.text
    error = (picture - plain[server.name, 28]).square().mean()
    assert -10 * error.log10() > 45  # PSNR in dB


def test_requests_of_different_lengths_and_settings_do_not_touch_each_other(server: Server, plain: Pictures) -> None:
    alone = {steps: server.calls(steps=steps, reuse={"speedup": 2}) for steps in (28, 24)}
    for steps in (24, 28):
        picture, calls = server.calls(steps=steps, reuse={"speedup": 2})
        assert calls == steps
        assert torch.equal(picture, alone[steps][0])
        assert server.calls(steps=steps, prompt=1, reuse={"computed_steps": 9})[1] == 2 * 9
        assert torch.equal(server.calls(steps=steps)[0], plain[server.name, steps])


def test_a_transformer_that_fails_leaves_nothing_behind(server: Server, plain: Pictures) -> None:
    alone, _ = server.calls(reuse="on")
    calls: list[None] = []

    def fail(*_: Any) -> None:
        calls.append(None)
        if len(calls) == 9:
            raise RuntimeError("out of memory")

    hook = server.transformer.register_forward_pre_hook(fail)
    request = server.request(reuse="on")
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            server.pipeline.forward(request, server.args)
    finally:
        hook.remove()
    assert "omnireuse" not in request.extra
    assert request.extra["diffusers_kwargs"]["omnireuse"] == "on"
    assert torch.equal(server.calls(reuse="on")[0], alone)
    assert torch.equal(server.calls()[0], plain[server.name, 28])


def test_the_metrics_of_a_response_say_what_was_reused(server: Server) -> None:
    from sglang.multimodal_gen.runtime.utils.perf_logger import RequestMetrics

    request = server.request(reuse="on")
    request.metrics = metrics = RequestMetrics("a")
    server.pipeline.forward(request, server.args)
    assert metrics.to_dict()["omnireuse_steps_computed"] == metrics.to_dict()["omnireuse_steps_reused"] == 14


def test_a_warm_up_computes_every_step(server: Server) -> None:
    assert server.calls(reuse="on", warmup=True)[1] == 2 * 28


@pytest.mark.parametrize(
    ("reuse", "message"),
    [
        ({"sped": 2}, "did you mean 'speedup'"),
        ({"speedup": 2, "tolerance": 0.1}, "must have one target"),
        ("half", 'omnireuse must be "on", "off" or a mapping'),
    ],
)
def test_bad_settings_are_refused_at_admission_and_by_the_worker(server: Server, reuse: object, message: str) -> None:
    request = server.request(reuse=reuse)
    with pytest.raises((ValueError, TypeError), match=message):
        request.sampling_params._validate_with_pipeline_config(server.args.pipeline_config)
    with pytest.raises((ValueError, TypeError), match=message):
        server.pipeline.forward(request, server.args)


@pytest.mark.parametrize("other", ["enable_teacache", "enable_spectrum", "enable_cache_dit"])
def test_another_cache_beside_it_is_refused(server: Server, other: str) -> None:
    request = server.request(reuse="on", **{other: True})
    with pytest.raises(ValueError, match=f"{other}: the request gets omnireuse, too"):
        request.sampling_params._validate_with_pipeline_config(server.args.pipeline_config)


def test_a_pipeline_with_a_loop_of_its_own_computes_every_step_and_says_so(
    native: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.multimodal_gen.runtime.pipelines_core.stages.denoising import DenoisingStage

    inside = DenoisingStage._predict_noise_with_cfg.__wrapped__
    monkeypatch.setattr(DenoisingStage, "_predict_noise_with_cfg", inside)
    for _ in range(2):
        assert native.calls(reuse="on")[1] == 2 * 28
    assert caplog.text.count("which denoises in its own loop: every step is computed") == 1
