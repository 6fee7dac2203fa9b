"""The steps of a ComfyUI run, from its sigmas alone."""

from __future__ import annotations

import pytest
import torch

from omnireuse_engines.comfyui.noise import RunNoise


class Flow:
    """Latents are (1 − σ) · clean + σ · noise."""

    def noise_scaling(
        self, sigma: torch.Tensor, noise: torch.Tensor, clean: torch.Tensor, max_denoise: bool = False
    ) -> torch.Tensor:
        sigma = sigma.reshape(-1, 1)
        return sigma * noise + (1 - sigma) * clean


class Exploding(Flow):
    """Latents are clean + σ · noise."""

    def noise_scaling(
        self, sigma: torch.Tensor, noise: torch.Tensor, clean: torch.Tensor, max_denoise: bool = False
    ) -> torch.Tensor:
        return sigma.reshape(-1, 1) * noise + clean


class Unknown(Flow):
    """The sampler begins with a picture."""

    def noise_scaling(
        self, sigma: torch.Tensor, noise: torch.Tensor, clean: torch.Tensor, max_denoise: bool = False
    ) -> torch.Tensor:
        return clean


def test_the_share_of_noise_follows_from_how_latents_are_made() -> None:
    flow = RunNoise([1.0, 0.5, 0.25, 0.0], Flow(), derivative=False)
    assert [level.coordinate for level in flow.levels] == pytest.approx([1.0, 0.5, 0.25])
    exploding = RunNoise([3.0, 1.0, 0.0], Exploding(), derivative=False)
    assert [level.coordinate for level in exploding.levels] == pytest.approx([0.75, 0.5])


def test_a_call_belongs_to_the_step_that_began_last() -> None:
    noise = RunNoise([1.0, 0.5, 0.25, 0.0], Flow(), derivative=False)
    steps = {1.2: 0, 1.0: 0, 0.9999: 0, 0.7: 0, 0.5: 1, 0.5000001: 1, 0.4: 1, 0.25: 2, 0.1: 2}
    assert {sigma: noise.step_of(sigma) for sigma in steps} == steps
    assert noise.level_at(0.7).coordinate == pytest.approx(0.7)
    assert noise.level_at(0.5000001) is noise.levels[1]


@pytest.mark.parametrize("model_sampling", [Flow(), Exploding()])
def test_a_derivative_gives_the_x0_that_it_came_from(model_sampling: Flow) -> None:
    noise = RunNoise([0.8, 0.4, 0.0], model_sampling, derivative=True)
    x, x0 = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), torch.full((2, 3), 0.5)
    for sigma in (0.8, 0.6):
        torch.testing.assert_close(noise.level_at(sigma).value_of(x, (x - x0) / sigma), x0)


def test_steps_stand_in_for_noise_that_is_not_known() -> None:
    noise = RunNoise([1.0, 0.5, 0.25, 0.0], Unknown(), derivative=False)
    assert [level.coordinate for level in noise.levels] == [0.0, 1.0, 2.0]
    assert noise.level_at(0.75).coordinate == pytest.approx(0.5)
    assert noise.levels[0].sample_weight is None


def test_sigmas_that_rise_are_known() -> None:
    assert RunNoise([1.0, 0.5, 0.5, 0.0], Flow(), derivative=False).falls
    assert not RunNoise([1.0, 0.3, 0.5, 0.0], Flow(), derivative=False).falls


@pytest.mark.parametrize(
    ("sampler", "steps"), [("euler", [(0.5, 0.5), (0.75, 0.25), (1.0, 0.0)]), ("heun", [None] * 3)]
)
def test_a_step_is_known_of_samplers_that_call_once_and_add_no_noise(sampler: str, steps: list[object]) -> None:
    noise = RunNoise([0.8, 0.4, 0.1, 0.0], Flow(), derivative=False, sampler=sampler)
    assert [level.step for level in noise.levels] == steps
