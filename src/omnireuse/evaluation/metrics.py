"""How close an image or a clip is to its reference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from omnireuse.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["IDENTICAL_DB", "bootstrap", "mean_psnr", "psnr", "ssim"]

IDENTICAL_DB = 100.0
"""What an infinite PSNR counts as in a mean. One level of one channel of one pixel of a 64 × 64 image is 89 dB."""


def _pair(image: Any, reference: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    import numpy as np

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


def ssim(image: Any, reference: Any) -> float:
    """Structural similarity, 1 where identical, as scikit-image computes it on all channels; of clips the mean.

    Source: Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to Structural
    Similarity", 2004; their Gaussian window (σ = 1.5) and population covariance.

    Raises:
        ConfigError: as `psnr`.
        MissingExtraError: scikit-image is not installed.
    """
    first, second = _pair(image, reference)
    try:
        from skimage.metrics import structural_similarity
    except ImportError as error:
        raise MissingExtraError("ssim", "report") from error
    frames = [(first, second)] if first.ndim == 3 else zip(first, second, strict=True)
    return statistics.fmean(
        float(
            structural_similarity(
                one,
                other,
                data_range=1.0,
                channel_axis=2,
                gaussian_weights=True,
                sigma=1.5,
                use_sample_covariance=False,
            )
        )
        for one, other in frames
    )


def mean_psnr(values: Iterable[float]) -> float:
    """Mean of PSNRs in dB, each counted as `IDENTICAL_DB` at most; inf only where all images are identical."""
    values = list(values)
    if not values:
        return math.nan
    if all(value == math.inf for value in values):
        return math.inf
    return sum(min(value, IDENTICAL_DB) for value in values) / len(values)


def bootstrap(values: Sequence[float], *, resamples: int = 2000) -> tuple[float, float]:
    """The interval of 95 % of the mean of `values`: percentiles of the means of samples drawn from them anew.

    Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979. The same values give the same interval.
    """
    import numpy as np

    drawn = np.random.default_rng(0).choice(np.asarray(values, dtype=np.float64), (resamples, len(values)))
    low, high = np.percentile(drawn.mean(axis=1), (2.5, 97.5))
    return float(low), float(high)
