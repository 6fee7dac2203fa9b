"""Where gradients are wanted, reuse is refused or the gradient is right; nothing is detached in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import Steps
from omnireuse.errors import StateError
from tests.helpers.tiny import FLUX_CALL, Tiny

CHOICES = [("step", "x0"), ("call", "output"), ("blocks", "residual"), ("tail", "output")]
GIVEN = dict(FLUX_CALL)


class Loop:
    """A sampling loop, step by step, each with gradients or without."""

    def __init__(self, tiny: Tiny, steps: int = 5) -> None:
        self.transformer, self.scheduler = tiny.pipe.transformer, tiny.pipe.scheduler
        self.scheduler.set_timesteps(steps)
        self.latents = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(0))

    def step(self, index: int, *, grad: bool) -> torch.Tensor:
        with torch.set_grad_enabled(grad):
            t = self.scheduler.timesteps[index]
            output = self.transformer(hidden_states=self.latents, timestep=t[None] / 1000, **GIVEN)[0]
            self.latents = self.scheduler.step(output, t, self.latents).prev_sample
        return self.latents


def enabled(tiny: Tiny, region: str, target: str) -> omnireuse.Handle:
    return omnireuse.enable(tiny.pipe, policy=Steps(steps=(0, 2)), region=region, prediction_target=target)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.parametrize(("region", "target"), CHOICES)
def test_gradients_of_parameters_are_refused_on_computed_and_on_reused_steps(
    flux: Tiny, region: str, target: str, wanted: int, checkpointing: bool
) -> None:
    if checkpointing:
        flux.pipe.transformer.enable_gradient_checkpointing()
        flux.pipe.transformer.train()
    with enabled(flux, region, target) as handle:
        loop = Loop(flux)
        for index in range(wanted):
            loop.step(index, grad=False)
        with pytest.raises(StateError, match=r"torch\.no_grad"):
            loop.step(wanted, grad=True)
        # Refused before anything ran, and the run is over.
        assert len(handle.events) == wanted
        assert loop.step(wanted, grad=True).requires_grad


@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.parametrize(("region", "target"), CHOICES)
def test_gradients_of_latents_and_prompts_are_refused(flux: Tiny, region: str, target: str, wanted: int) -> None:
    flux.pipe.transformer.requires_grad_(False)
    for name in ("latents", "prompt"):
        with enabled(flux, region, target), pytest.MonkeyPatch.context() as patch:
            loop = Loop(flux)
            for index in range(wanted):
                loop.step(index, grad=False)
            if name == "latents":
                loop.latents = loop.latents.clone().requires_grad_()
            else:
                patch.setitem(GIVEN, "encoder_hidden_states", torch.ones(1, 6, 32, requires_grad=True))
            with pytest.raises(StateError, match=r"torch\.no_grad"):
                loop.step(wanted, grad=True)


@pytest.mark.parametrize(("region", "target"), CHOICES)
def test_without_anything_to_train_autograd_may_be_on(flux: Tiny, region: str, target: str) -> None:
    flux.pipe.transformer.requires_grad_(False)
    results = []
    for grad in (True, False):
        with enabled(flux, region, target) as handle:
            loop = Loop(flux)
            for index in range(5):
                loop.step(index, grad=grad)
        assert handle.summary().reused_calls > 0
        results.append(loop.latents)
    assert torch.equal(*results)


def test_a_gradient_through_the_scheduler_alone_is_that_of_the_plain_pipeline(flux: Tiny) -> None:
    # The model is asked about detached latents, and only the scheduler's step carries the gradient.
    def gradient(reuse: Any) -> torch.Tensor:
        with reuse:
            loop = Loop(flux)
            start = loop.latents.requires_grad_()
            for index, t in enumerate(loop.scheduler.timesteps):
                with torch.no_grad():
                    call = {"hidden_states": loop.latents.detach(), "timestep": t[None] / 1000}
                    output = flux.pipe.transformer(**call, **GIVEN)[0]
                loop.latents = loop.scheduler.step(output, t, loop.latents).prev_sample
                assert loop.latents.requires_grad, index
            loop.latents.sum().backward()
        assert start.grad is not None
        return start.grad

    flux.pipe.transformer.requires_grad_(False)
    plain = gradient(torch.enable_grad())
    for region, target in CHOICES:
        assert torch.equal(gradient(enabled(flux, region, target)), plain)


@pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])
def test_training_between_runs_gets_its_gradients(flux: Tiny, region: str) -> None:
    transformer = flux.pipe.transformer

    def train() -> torch.Tensor:
        transformer.zero_grad()
        transformer(hidden_states=torch.ones(1, 16, 16), timestep=torch.ones(1), **GIVEN)[0].square().sum().backward()
        gradient = transformer.x_embedder.weight.grad
        assert gradient is not None
        return gradient.clone()

    plain = train()
    transformer.enable_gradient_checkpointing()
    with omnireuse.enable(flux.pipe, policy="fixed", region=region) as handle:
        flux.run()
        transformer.train()
        torch.testing.assert_close(train(), plain)
        assert handle.summary().calls_outside == 1


@pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])
def test_steps_in_inference_mode_mix_with_others(flux: Tiny, region: str) -> None:
    results = []
    for inference in (False, True):
        with omnireuse.enable(flux.pipe, policy="fixed", forecaster="polynomial", region=region):
            loop = Loop(flux, 6)
            for index in range(6):
                with torch.inference_mode(inference and index % 2 == 0):
                    loop.step(index, grad=False)
        results.append(loop.latents.clone())
    assert torch.equal(*results)
