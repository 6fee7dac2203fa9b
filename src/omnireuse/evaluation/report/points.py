"""A demo's comparison as points of quality against compute, so that one plot serves it and a comparison with peers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from omnireuse.evaluation.metrics import IDENTICAL_DB, bootstrap
from omnireuse.evaluation.report.pareto import Case, Full, Mean, Point, Spread
from omnireuse.evaluation.report.results import Comparison, Variant

__all__ = ["FEWER_STEPS", "case_of"]

FEWER_STEPS = "fewer steps"
"""The method that all floors are settings of."""


def case_of(comparison: Comparison) -> Case:
    """Every variant but the reference as a point, in the same order; the floors are settings of one method."""
    reference = comparison.reference
    return Case(
        pipeline=comparison.model,
        steps=comparison.steps,
        guidance=comparison.guidance,
        prompts=comparison.prompts,
        full=Full(seconds=_spread(reference.seconds), attributes=reference.accuracy),
        points=tuple(_point(comparison, variant) for variant in comparison.variants[1:]),
    )


def _point(comparison: Comparison, variant: Variant) -> Point:
    shares = [statistics.fmean(sample.attributes.values()) for sample in variant.samples if sample.attributes]
    kept = [sample.retained_bytes for sample in variant.samples if sample.retained_bytes is not None]
    each = tuple(min(sample.psnr, IDENTICAL_DB) for sample in variant.samples)
    steps = math.ceil(variant.computed_steps - 1e-9)
    return Point(
        method=FEWER_STEPS if variant.role == "floor" else variant.name,
        family="floor" if variant.role == "floor" else "ours",
        settings={name: value for name, value in variant.settings.items() if name != "call"},
        computed_steps=variant.computed_steps,
        psnr=_mean(each),
        each=each,
        ssim=_mean([sample.ssim for sample in variant.samples]),
        attributes=_mean(shares) if shares else None,
        speedup=_spread(comparison.speedups(variant)),
        retained_bytes=max(kept) if kept else None,
        call=str(variant.settings.get("call") or f"pipeline(prompt, num_inference_steps={steps})"),
    )


def _mean(values: Sequence[float]) -> Mean:
    low, high = bootstrap(values)
    return Mean(mean=statistics.fmean(values), low=low, high=high)


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median=statistics.median(values), low=min(values), high=max(values))
