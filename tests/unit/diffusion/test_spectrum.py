"""The latents as seen through the noise."""

from __future__ import annotations

import pytest
import torch

from omnireuse.errors import UnsupportedModelError
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.noise.signals import filtered, grid_of


def level(at: float) -> NoiseLevel:
    return NoiseLevel(sigma=at, coordinate=at, sample_weight=1.0, output_weight=-at)


def test_the_filter_is_the_optimal_linear_denoiser() -> None:
    latents = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = 0.7, 0.3
    f = torch.sqrt(torch.fft.fftfreq(8).double()[:, None] ** 2 + torch.fft.fftfreq(6).double()[None] ** 2)
    gain = torch.where(f > 0, a * f**-2 / (a**2 * f**-2 + b**2), 1 / a)
    expected = torch.fft.ifftn(torch.fft.fftn(latents, dim=(2, 3)) * gain / gain.mean(), dim=(2, 3)).real
    torch.testing.assert_close(filtered(latents, level(b).noise, None).double(), expected, rtol=1e-4, atol=1e-5)


def test_noise_hides_fine_detail_early_and_not_late() -> None:
    stripes = torch.tensor([1.0, -1.0]).repeat(8).expand(1, 1, 16, 16)
    weights = [filtered(stripes, level(at).noise, None).abs().max().item() for at in (1.0, 0.9, 0.5, 0.1, 0.0)]
    assert weights == sorted(weights)
    assert weights[0] < 0.01
    assert weights[-1] == pytest.approx(1.0, abs=1e-3)


def test_packed_latents_are_unfolded() -> None:
    latents = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(1))
    packed = latents.flatten(2).transpose(1, 2)
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(6), indexing="ij")
    ids = torch.stack((torch.zeros(24), rows.flatten(), columns.flatten()), 1)
    for kwargs in (
        {"img_ids": ids},
        {"img_ids": ids.expand(2, -1, -1)},
        {"img_shapes": [[(1, 4, 6)]] * 2},
        {"img_shapes": [(1, 4, 6)]},
        {"height": 4, "width": 6},
    ):
        grid = grid_of(packed, kwargs)
        assert grid == (4, 6)
        torch.testing.assert_close(filtered(packed, level(0.4).noise, grid), filtered(latents, level(0.4).noise, None))
    assert grid_of(torch.zeros(1, 48, 3), {"num_frames": 2, "height": 4, "width": 6}) == (2, 4, 6)
    assert grid_of(latents, {}) is None


def test_what_the_filter_cannot_know_is_an_error() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot tell rows and columns"):
        grid_of(torch.zeros(1, 24, 3), {"height": 5, "width": 5})
    with pytest.raises(UnsupportedModelError, match="needs the noise of the scheduler"):
        filtered(torch.zeros(1, 3, 4, 4), NoiseLevel(sigma=None, coordinate=3.0).noise, None)
