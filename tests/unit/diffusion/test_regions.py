"""What a reused step really is, computed by hand beside the mechanism."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import EveryNth, Hold, Polynomial, Steps
from omnireuse.errors import StateError, UnsupportedModelError
from omnireuse.loop.strategy import Strategy
from tests.helpers.tiny import FLUX_CALL, TINY, Tiny


def test_holding_the_output_is_eulers_method_on_the_computed_steps(flux: Tiny) -> None:
    sigmas = [1.0, 0.9, 0.7, 0.45, 0.3, 0.1]
    computed = (0, 2, 3, 5)
    with omnireuse.enable(flux.pipe, policy=Steps(steps=computed), region="step", prediction_target="output"):
        reused = flux.run(steps=None, sigmas=sigmas)
    alone = flux.run(steps=None, sigmas=[sigmas[i] for i in computed])
    torch.testing.assert_close(reused, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["flux", "stable_diffusion", "wan"])
def test_call_and_step_agree_where_guidance_is_linear(name: str) -> None:
    # Both forecasts are linear in what they remember, and so is guidance (Qwen-Image's rescaling is not).
    tiny = TINY[name]()
    results = []
    for region in ("step", "call"):
        strategy = {
            "policy": EveryNth(every=2, warmup=2),
            "forecaster": Polynomial(order=1),
            "prediction_target": "x0",
        }
        with omnireuse.enable(tiny.pipe, region=region, **strategy):
            results.append(tiny.run(steps=7))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)


class Watched(FlowMatchEulerDiscreteScheduler):
    """Notes what its own step is handed."""

    def step(self, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor, **kwargs: Any) -> Any:
        self.seen.append((model_output.clone(), sample.clone()))
        return super().step(model_output, timestep, sample, **kwargs)


def test_x0_held_is_won_back_from_the_current_latents(flux: Tiny) -> None:
    scheduler = flux.pipe.scheduler = Watched()
    scheduler.seen = []
    with omnireuse.enable(flux.pipe, policy=Steps(steps=(0, 1)), forecaster=Hold(), prediction_target="x0"):
        flux.run(steps=6)
    sigmas = scheduler.sigmas
    x0 = scheduler.seen[1][1] - sigmas[1] * scheduler.seen[1][0]
    for step in (2, 3, 4):
        output, sample = scheduler.seen[step]
        torch.testing.assert_close(output, (sample - x0) / sigmas[step], rtol=1e-4, atol=1e-4)


def test_additions_between_blocks_are_part_of_the_residual_once(flux: Tiny) -> None:
    # As a ControlNet adds: after every block, outside of it.
    transformer = flux.pipe.transformer
    addition = torch.full((1, 16, 32), 0.37)
    inner = type(transformer).forward
    kwargs = {"controlnet_block_samples": [addition] * 2, "controlnet_single_block_samples": [addition * 2] * 2}
    leaving: list[torch.Tensor] = []
    transformer.norm_out.register_forward_pre_hook(lambda _m, args: leaving.append(args[0].clone()))
    entering: list[torch.Tensor] = []
    transformer.x_embedder.register_forward_hook(lambda _m, _a, out: entering.append(out.clone()))
    transformer.forward = lambda *a, **k: inner(transformer, *a, **(k | kwargs))
    with omnireuse.enable(flux.pipe, policy=Steps(steps=(0, 2)), region="blocks"):
        flux.run(steps=5, guided=False)
    torch.testing.assert_close(leaving[3] - entering[3], leaving[2] - entering[2], rtol=1e-5, atol=1e-5)


def test_a_loop_of_ones_own_is_served_and_branches_are_told_by_their_order(flux: Tiny) -> None:
    # As rollout code writes it: no pipeline call, no cache context.
    transformer, scheduler = flux.pipe.transformer, flux.pipe.scheduler
    positions = {"img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3), "return_dict": False}
    texts = [
        {"encoder_hidden_states": torch.randn(1, 6, 32), "pooled_projections": torch.randn(1, 32)} for _ in range(2)
    ]

    @torch.no_grad()
    def sample() -> torch.Tensor:
        latents = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(0))
        scheduler.set_timesteps(6)
        for t in scheduler.timesteps:
            outputs = [
                transformer(hidden_states=latents, timestep=t[None] / 1000, **text, **positions)[0] for text in texts
            ]
            latents = scheduler.step(outputs[0] + 2 * (outputs[1] - outputs[0]), t, latents).prev_sample
        return latents

    full = sample()
    with omnireuse.enable(flux.pipe, policy="fixed", region="call") as handle:
        assert not torch.equal(sample(), full)
    assert {event.branch for event in handle.events} == {"0", "1"}
    assert handle.summary().reused_calls == 4
    assert torch.equal(sample(), full)


@torch.no_grad()
def own_steps(flux: Tiny, handle: omnireuse.Handle | None = None, steps: int = 6) -> torch.Tensor:
    """A rollout loop with a step function of its own."""
    transformer, scheduler = flux.pipe.transformer, flux.pipe.scheduler
    given = FLUX_CALL
    latents = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(0))
    scheduler.set_timesteps(steps)
    for index, t in enumerate(scheduler.timesteps):
        velocity = transformer(hidden_states=latents, timestep=t[None] / 1000, **given)[0]
        latents = latents + (scheduler.sigmas[index + 1] - scheduler.sigmas[index]) * velocity
        if handle is not None:
            handle.advance()
    return latents


@pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])
def test_a_step_function_of_ones_own_is_served_when_it_says_so(
    flux: Tiny, region: str, caplog: pytest.LogCaptureFixture
) -> None:
    full = own_steps(flux)
    with omnireuse.enable(flux.pipe, policy="fixed", region=region) as handle:
        served = own_steps(flux, handle)
        assert (handle.summary().reused_calls == 0) == (region == "step")
        assert torch.equal(served, full) == (region == "step")
        with pytest.raises(StateError, match="no run is under way"):
            handle.advance()
        assert torch.equal(own_steps(flux, handle), served)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == (1 if region == "step" else 0)
        assert all("give region='call'" in message for message in said)
        # Without the word, nothing is reused, nothing piles up, and it is said.
        caplog.clear()
        assert torch.equal(own_steps(flux, steps=6), full)
        flux.pipe.scheduler.set_timesteps(6)
        assert "no step ended after 6 calls" in caplog.text
        own_steps(flux, steps=70)
    assert len(caplog.records) == 1
    with omnireuse.enable(flux.pipe, policy="fixed", region=region) as handle:
        own_steps(flux, steps=70)
    assert "no step ended after 65 calls" in caplog.text


def test_what_stands_before_the_class_is_refused_instead_of_bypassed(flux: Tiny) -> None:
    flux.pipe.transformer.cache_context = lambda *_a, **_k: nullcontext()
    with pytest.raises(UnsupportedModelError, match="cache_context was replaced"):
        omnireuse.enable(flux.pipe, policy="fixed", region="call")


def test_guards_force_what_no_policy_wants(flux: Tiny) -> None:
    class Always(omnireuse.Policy):
        def wants_reuse(self, state: None, view: object) -> bool:
            return True

    with omnireuse.enable(flux.pipe, Strategy(policy=Always(), region="step", max_consecutive=2)) as handle:
        flux.run(steps=9)
    assert [event.reason if not event.reused else "" for event in handle.events] == [
        "first", "", "", "longest", "", "", "longest", "", "last",
    ]  # fmt: skip


def test_nothing_that_is_not_finite_is_reused(flux: Tiny) -> None:
    calls = []

    def poison(_module: Any, _args: Any, output: Any) -> Any:
        calls.append(1)
        return (torch.full_like(output[0], float("nan")),) if len(calls) == 3 else output

    hook = flux.pipe.transformer.register_forward_hook(poison)
    with omnireuse.enable(flux.pipe, "tea_cache", rel_l1_thresh=1e-9) as handle:
        flux.run(steps=6, guided=False)
    hook.remove()
    later = [event for event in handle.events if event.step >= 3]
    assert later
    assert not any(event.reused for event in later)
    assert "nonfinite" in {event.reason for event in later}


def test_an_observer_comes_and_goes_in_the_middle_of_a_run(flux: Tiny) -> None:
    seen: list[omnireuse.Decision] = []
    with omnireuse.enable(flux.pipe, policy=EveryNth(every=2)) as handle:
        stop: list[Any] = []

        def called(_pipe: Any, step: int, _timestep: Any, _kwargs: Any) -> dict[str, Any]:
            if step == 1:
                stop.append(handle.subscribe(seen.append))
            if step == 3:
                stop.pop()()
            return {}

        flux.run(steps=6, callback_on_step_end=called)
    assert tuple(seen) == handle.events[2:4]


def test_events_say_what_happened(flux: Tiny) -> None:
    seen: list[omnireuse.Decision] = []
    with omnireuse.enable(flux.pipe, policy=EveryNth(every=2)) as handle:
        stop = handle.subscribe(seen.append)
        flux.run(steps=6)
        stop()
        stop()
        flux.run(steps=6)
    assert tuple(seen) == handle.events[:6]
    assert [event.step for event in seen] == list(range(6))
    assert [event.reused for event in seen] == [False, True, False, True, False, False]
    assert all(event.total == 6 and event.branch == "step" and event.run == 1 for event in seen)
    assert all(isinstance(event, omnireuse.Decision) and event.host_seconds >= 0 for event in seen)
    assert seen[0].sigma == pytest.approx(1.0)
    assert seen[0].error is None
    assert seen[2].error is not None
    assert seen[2].error > 0
    summary = handle.summary()
    assert (summary.runs, summary.steps, summary.calls, summary.reused_calls) == (2, 12, 12, 4)
    assert "4 of 6 steps computed (1.50x fewer) in 2 runs" in str(summary)
