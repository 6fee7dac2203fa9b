"""Closeness of an image or a clip to its reference, and means over prompts with their intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnireuse.base.records import Record
from omnireuse.errors import ConfigError, MissingExtraError

__all__ = ["IDENTICAL_DB", "Mean", "Spread", "bootstrap", "capped_psnr", "psnr", "spread", "ssim"]

IDENTICAL_DB = 100.0
"""The value of identical pictures in a mean. One level of one channel of one pixel of a 64 × 64 image is 89 dB."""
RESAMPLES = 2000


class Mean(Record, frozen=True, kw_only=True):
    """A mean over prompts with its bootstrap interval of 95 %."""

    mean: float
    low: float
    high: float


class Spread(Record, frozen=True, kw_only=True):
    """A median over prompts with the lowest and the highest value."""

    median: float
    low: float
    high: float


def psnr(image: Any, reference: Any) -> float:
    """Peak signal-to-noise ratio in dB of `image` against `reference`; inf where they are identical.

    Args:
        image, reference: (height, width, channels), or a clip's (frames, height, width, channels), which counts as one
            large image; uint8 or floats in 0..1. Floats are better where images are close: at 59 dB and above the
            rounding to 8 bits is larger than the difference.

    Raises:
        ConfigError: another shape, another range or values that are not finite.
    """
    first, second = _pair(image, reference)
    error = float(((first - second) ** 2).mean())
    return math.inf if error == 0.0 else -10.0 * math.log10(error)


def capped_psnr(image: Any, reference: Any) -> float:
    """`psnr`, at most `IDENTICAL_DB`; 0 where the image is not finite."""
    return min(psnr(image, reference), IDENTICAL_DB) if np.isfinite(image).all() else 0.0


def ssim(image: Any, reference: Any) -> float:
    """Structural similarity, 1 where identical, as scikit-image computes it on all channels; of clips the mean.

    Source: Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to Structural
    Similarity", 2004; their Gaussian window (σ = 1.5) and population covariance.

    Raises:
        ConfigError: as `psnr`.
        MissingExtraError: scikit-image is not installed.
    """
    try:
        from skimage.metrics import structural_similarity
    except ImportError as error:
        raise MissingExtraError("ssim", "report") from error
    first, second = _pair(image, reference)
    options = {"data_range": 1.0, "channel_axis": 2, "gaussian_weights": True, "sigma": 1.5}
    frames = [(first, second)] if first.ndim == 3 else zip(first, second, strict=True)
    return statistics.fmean(
        float(structural_similarity(one, other, use_sample_covariance=False, **options)) for one, other in frames
    )


def bootstrap(values: Sequence[float]) -> Mean:
    """The mean of `values` with its percentile interval of 95 %. The same values give the same interval.

    Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979.
    """
    array = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
    low, high = np.quantile(array[picks].mean(axis=1), (0.025, 0.975))
    return Mean(mean=float(array.mean()), low=float(low), high=float(high))


def spread(values: Sequence[float]) -> Spread:
    """The median of `values` with the lowest and the highest."""
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


def _pair(image: Any, reference: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
