"""Structural similarity, and means over prompts with their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from skimage.metrics import structural_similarity

from omnireuse.base.records import Record
from omnireuse.pipelines import as_floats

__all__ = ["Mean", "MedianRange", "bootstrap", "spread", "ssim"]

RESAMPLES = 2000


class Mean(Record, frozen=True, kw_only=True):
    """A mean over prompts with its bootstrap interval of 95 %."""

    mean: float
    low: float
    high: float


class MedianRange(Record, frozen=True, kw_only=True):
    """A median over prompts with the lowest and the highest value."""

    median: float
    low: float
    high: float


def ssim(image: Any, reference: Any) -> float:
    """Structural similarity, 1 if identical, as scikit-image computes it on all channels; of clips the mean.

    Source: Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to Structural
    Similarity", 2004; their Gaussian window (σ = 1.5) and population covariance.

    Raises:
        ConfigError: as `omnireuse.pipelines.psnr`.
    """
    first, second = as_floats(image, reference)
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


def spread(values: Sequence[float]) -> MedianRange:
    """The median of `values` with the lowest and the highest."""
    return MedianRange(median=statistics.median(values), low=min(values), high=max(values))
