from __future__ import annotations

import math

import numpy as np
import pytest

from omnireuse.errors import ConfigError
from omnireuse.pipelines.pictures import IDENTICAL_DB, capped_psnr, psnr
from omnireuse_lab.closeness import ssim

GREY = np.full((16, 16, 3), 0.5)


def test_psnr_of_a_known_difference() -> None:
    assert psnr(GREY + 0.1, GREY) == pytest.approx(20.0)
    assert psnr(GREY + 0.001, GREY) == pytest.approx(60.0)


def test_identical_images() -> None:
    assert psnr(GREY, GREY) == math.inf
    assert ssim(GREY, GREY) == pytest.approx(1.0)


def test_bytes_and_floats_are_the_same_image() -> None:
    levels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert psnr(levels, levels / 255.0) == math.inf
    other = np.roll(levels, 1, axis=0)
    assert psnr(levels, other) == pytest.approx(psnr(levels / 255.0, other / 255.0))


def test_ssim_agrees_with_its_closed_form_on_flat_images() -> None:
    # Without variance only the luminance term is left: (2ab + c1) / (a² + b² + c1) with c1 = 0.01².
    a, b, c1 = 0.5, 0.6, 1e-4
    assert ssim(GREY, GREY + 0.1) == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1), rel=1e-6)


def test_a_clip_counts_as_its_frames() -> None:
    clip = np.stack([GREY, GREY + 0.1])
    assert psnr(clip, np.stack([GREY, GREY])) == pytest.approx(20.0 + 10 * math.log10(2))
    assert ssim(clip, np.stack([GREY, GREY])) == pytest.approx((1.0 + ssim(GREY + 0.1, GREY)) / 2)


def test_a_mean_counts_identical_images_as_the_cap_and_broken_ones_as_nothing() -> None:
    assert capped_psnr(GREY, GREY) == IDENTICAL_DB
    assert capped_psnr(GREY + 0.1, GREY) == pytest.approx(20.0)
    assert capped_psnr(np.full_like(GREY, math.nan), GREY) == 0.0


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((16, 16)), "shape must be"),
        (np.zeros((16, 16, 4)), "1 or 3 channels"),
        (np.zeros((8, 16, 3)), "shape must be the reference's"),
        (np.full((16, 16, 3), 2.0), "0..1"),
        (np.full((16, 16, 3), math.nan), "finite"),
    ],
)
def test_what_is_no_image_is_refused(image: np.ndarray, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        psnr(image, GREY)
