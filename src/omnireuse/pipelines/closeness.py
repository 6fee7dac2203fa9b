"""Closeness of an image or a clip to its reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnireuse.errors import ConfigError

__all__ = ["IDENTICAL_DB", "as_floats", "capped_psnr", "psnr"]

IDENTICAL_DB = 100.0
"""The value of identical pictures in a mean. One level of one channel of one pixel of a 64 × 64 image is 89 dB."""


def psnr(image: Any, reference: Any) -> float:
    """Peak signal-to-noise ratio in dB of `image` against `reference`; inf where they are identical.

    Args:
        image, reference: (height, width, channels), or a clip's (frames, height, width, channels), which counts as one
            large image; uint8 or floats in 0..1. Floats are better where images are close: at 59 dB and above the
            rounding to 8 bits is larger than the difference.

    Raises:
        ConfigError: another shape, another range or values that are not finite.
    """
    first, second = as_floats(image, reference)
    error = float(((first - second) ** 2).mean())
    return math.inf if error == 0.0 else -10.0 * math.log10(error)


def capped_psnr(image: Any, reference: Any) -> float:
    """`psnr`, at most `IDENTICAL_DB`; 0 where the image is not finite."""
    return min(psnr(image, reference), IDENTICAL_DB) if np.isfinite(image).all() else 0.0


def as_floats(image: Any, reference: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both as floats in 0..1, of one shape.

    Args:
        image, reference: as in `psnr`.

    Raises:
        ConfigError: as `psnr`.
    """
    arrays = []
    for name, given in (("image", image), ("reference", reference)):
        array = np.asarray(given)
        scaled = array / 255.0 if array.dtype == np.uint8 else array.astype(np.float64)
        if array.ndim not in (3, 4) or array.shape[-1] not in (1, 3):
            raise ConfigError(
                f"{name}(shape={array.shape}): shape must be (height, width, channels) with 1 or 3 channels, with the "
                "frames of a clip before them"
            )
        if not np.isfinite(scaled).all() or scaled.min() < -1e-6 or scaled.max() > 1 + 1e-6:
            raise ConfigError(
                f"{name}: values must be uint8 or finite floats in 0..1, got {scaled.min():g}..{scaled.max():g}"
            )
        arrays.append(scaled)
    if arrays[0].shape != arrays[1].shape:
        raise ConfigError(f"image(shape={arrays[0].shape}): shape must be the reference's, got {arrays[1].shape} there")
    return arrays[0], arrays[1]
