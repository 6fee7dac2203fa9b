"""Two samplers in a row that make one picture: the first leaves noise for the second."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from engines.tests.hosts.comfyui.conftest import IN_COMFYUI
from engines.tests.hosts.comfyui.test_nodes import generations
from engines.tests.hosts.comfyui.test_samplers import relative
from omnireuse_engines.comfyui import attach, plan_for, reuse_of

pytestmark = IN_COMFYUI

STEPS, GUIDANCE = 20, 6.0


class TwoSamplers:
    """Two nodes *KSampler (Advanced)* in a row."""

    def __init__(self, host: ModuleType) -> None:
        _, known = host.executor()
        self._host, self._node = host, known["KSamplerAdvanced"]()

    def begin(self, model: Any, at: int = 10, sampler: str = "euler") -> dict[str, torch.Tensor]:
        empty = {"samples": torch.zeros(1, 8, 16, 16)}
        return self._sample(model, empty, sampler, "enable", 0, at, "enable")

    def go_on(
        self, model: Any, latent: dict[str, torch.Tensor], at: int = 10, sampler: str = "euler", **options: Any
    ) -> torch.Tensor:
        return self._sample(model, latent, sampler, "disable", at, 10_000, "disable", **options)["samples"]

    def make(self, first: Any, second: Any, **options: Any) -> torch.Tensor:
        return self.go_on(second, self.begin(first, **options), **options)

    def _sample(
        self,
        model: Any,
        latent: Any,
        sampler: str,
        add_noise: str,
        start: int,
        end: int,
        leave_noise: str,
        positive: int = 1,
        cfg: float = GUIDANCE,
    ) -> Any:
        with torch.inference_mode():
            (made,) = self._node.sample(
                model,
                add_noise,
                0,
                STEPS,
                cfg,
                sampler,
                "simple",
                self._host.condition(positive),
                self._host.condition(2),
                latent,
                start,
                end,
                leave_noise,
            )
        return made


@pytest.fixture
def two(host: ModuleType) -> TwoSamplers:
    return TwoSamplers(host)


# Heun's method makes its second call at the sigma of the next step.
@pytest.mark.parametrize(("sampler", "also"), [("euler", set()), ("dpmpp_2m", set()), ("heun", {10})])
def test_a_part_goes_on_with_what_the_part_before_has_computed(
    host: ModuleType, model: Any, two: TwoSamplers, sampler: str, also: set[int]
) -> None:
    full, in_parts = host.sample(model, sampler), two.make(model, model, sampler=sampler)
    patched, alone = (attach(model, plan_for(speedup=2.0)) for _ in range(2))
    made = two.make(patched, patched, sampler=sampler)
    expected = relative(host.sample(alone, sampler), full)
    assert relative(made, in_parts) < 1.2 * expected
    summary = reuse_of(patched).summary()
    computed = {step for step, share in enumerate(summary.last_run) if share}
    # As one sampler, and the last step of the first part.
    assert computed == {0, 1, 2, 3, 4, 6, 8, 9, 11, 14, 18} | also
    assert (summary.runs, summary.steps) == (1, STEPS)


@pytest.mark.parametrize("tune", [False, True])
def test_the_default_knows_that_a_part_is_no_short_run(
    model: Any, two: TwoSamplers, monkeypatch: pytest.MonkeyPatch, tune: bool
) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    patched = attach(model, plan_for(), tune=tune)
    two.make(patched, patched)
    summary = reuse_of(patched).summary()
    assert sum(bool(share) for share in summary.last_run) in (12, 13)
    assert summary.steps == STEPS
    assert ("makes only a part of the denoising is not tuned" in str(summary)) == tune


def test_two_models_share_nothing_and_what_is_asked_for_does_not_harm(
    host: ModuleType, counted: Any, two: TwoSamplers, caplog: pytest.LogCaptureFixture
) -> None:
    model, counter = counted
    full = two.make(model, model)
    first, second = (attach(model, plan_for(speedup=2.0)) for _ in range(2))
    counter.sigmas.clear()
    made = two.make(first, second)
    calls = len(counter.sigmas)
    assert calls < 15
    fewer = host.sample(model, steps=10)
    assert relative(made, full) < relative(fewer, full)
    assert reuse_of(first).summary().last_run[9] == 1.0
    assert reuse_of(second).summary().last_run[0] == 1.0
    assert reuse_of(second).summary().fallbacks == {"nothing remembered of the sampler before": 1}
    assert "does not know the steps before these 10 of a denoising" in caplog.text


def test_a_short_part_of_another_model_is_computed_and_said(
    model: Any, two: TwoSamplers, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (attach(model, plan_for()) for _ in range(2))
    latent = two.begin(first)
    assert torch.equal(two.go_on(second, latent), two.go_on(model, latent))
    assert "all 10 steps are computed" in caplog.text
    assert "take fewer steps" in caplog.text
    assert "num_inference_steps" not in caplog.text


def test_other_latents_prompts_and_guidance_do_not_go_on(model: Any, two: TwoSamplers) -> None:
    def fallbacks(change: float = 0.0, **options: Any) -> dict[str, int]:
        patched = attach(model, plan_for(speedup=2.0))
        latent = two.begin(patched)
        two.go_on(patched, {"samples": latent["samples"] + change}, **options)
        return reuse_of(patched).summary().fallbacks

    assert fallbacks() == {}
    for changed in ({"change": 0.1}, {"positive": 5}, {"cfg": 3.0}):
        assert fallbacks(**changed) == {"nothing remembered of the sampler before": 1}, changed


def test_a_part_is_remembered_until_another_run_begins(host: ModuleType, model: Any, two: TwoSamplers) -> None:
    patched = attach(model, plan_for(speedup=2.0))
    two.begin(patched)
    assert generations() == 1
    host.sample(patched)
    assert generations() == 0
