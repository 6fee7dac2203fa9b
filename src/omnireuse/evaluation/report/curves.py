"""Drift and forecast error of a prompt's runs, on the step axis of their decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from omnireuse.evaluation.report.results import Comparison

__all__ = ["Curve", "Line", "curves"]

_HEIGHT = 100.0
_READINGS = {
    "drift": "Drift is how much the values that a cache watches changed, as a share of them: where a line is low, "
    "neighbouring steps are alike.",
    "forecast error": "Forecast error is how far the forecast was from what a computed step then gave, as a share of "
    "it: where a line is low, little is lost by reuse.",
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One branch of one run, as paths of an SVG that is as many units wide as the run has steps, and 100 high.

    Attributes:
        variant: its name.
        tone: its colour.
        branch: counted from 0 within the run.
        path: joins the values.
        dots: a mark on each value, for a round line cap to draw.
    """

    variant: str
    tone: str
    branch: int
    path: str
    dots: str


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity over the steps, on a logarithmic scale from the `low`est to the `high`est value of all runs.

    Attributes:
        reading: how to read it, in one sentence.
    """

    name: str
    reading: str
    low: float
    high: float
    lines: tuple[Line, ...]


def curves(comparison: Comparison, number: int, tones: Mapping[str, str]) -> tuple[Curve, ...]:
    """What the runs for prompt `number` measured: drift and forecast error, each only where some run did."""
    found = (
        _curve(comparison, number, tones, name, field)
        for name, field in (("drift", "drift"), ("forecast error", "error"))
    )
    return tuple(curve for curve in found if curve is not None)


def _curve(comparison: Comparison, number: int, tones: Mapping[str, str], name: str, field: str) -> Curve | None:
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for variant in comparison.variants:
        for mark in variant.samples[number].marks:
            value = getattr(mark, field)
            if value is not None and math.isfinite(value) and value > 0.0:
                series.setdefault((variant.name, mark.branch), []).append((mark.step, value))
    values = [value for points in series.values() for _, value in points]
    if not values:
        return None
    low, high = min(values), max(values)
    span = math.log(high / low) or 1.0
    lines: list[Line] = []
    for (variant_name, _), points in series.items():
        places = [f"{step + 0.5:g} {_HEIGHT * (1.0 - math.log(value / low) / span):.1f}" for step, value in points]
        lines.append(
            Line(
                variant=variant_name,
                tone=tones[variant_name],
                branch=sum(line.variant == variant_name for line in lines),
                path="M" + "L".join(places),
                dots="".join(f"M{place}h0" for place in places),
            )
        )
    return Curve(name=name, reading=_READINGS[name], low=low, high=high, lines=tuple(lines))
