"""The runs of a case with pictures: their colours, their decisions as strips, and what they measured as curves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from omnireuse.evaluation.record import Case, Sample

__all__ = ["Curve", "Line", "ShownRun", "axis_of", "curves", "runs_of", "strip"]

HEIGHT = 100.0
READINGS = {
    "drift": "Drift is how much the values that a cache watches changed, as a share of them: where a line is low, "
    "neighbouring steps are alike.",
    "forecast error": "Forecast error is how far the forecast was from what a computed step then gave, as a share of "
    "it: where a line is low, little is lost by reuse.",
}


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """One way of making the pictures of a case.

    Attributes:
        name: for people.
        role: "reference" (computes everything), "cache" or "baseline" (fewer steps, no cache).
        tone: its colour; a baseline has that of the first cache that it costs as much as.
        samples: one for each prompt.
        best: whether the page is about it.
    """

    name: str
    role: str
    tone: str
    samples: tuple[Sample, ...]
    best: bool = False


def runs_of(case: Case) -> tuple[ShownRun, ...]:
    """The full run and then the points of a case, in their order."""
    best = case.points[case.highlight]
    spare = iter(("first", "second", "third"))
    tones: dict[str, str] = {}
    for point in case.points:
        if point.family != "baseline":
            tones[point.title] = "highlight" if point is best else next(spare, "muted")
            if (baseline := case.baseline_of(point)) is not None:
                tones.setdefault(baseline.title, tones[point.title])
    return (
        ShownRun(name="full", role="reference", tone="full", samples=case.full.samples),
        *(
            ShownRun(
                name=point.title,
                role="baseline" if point.family == "baseline" else "cache",
                tone=tones.get(point.title, "muted"),
                samples=point.samples,
                best=point is best,
            )
            for point in case.points
        ),
    )


def axis_of(case: Case) -> int:
    """Steps that the decisions of all runs fit on: more than `steps` where a solver calls the model more often."""
    samples = (sample for point in case.points for sample in point.samples)
    return max(case.steps, 1 + max((each.step for sample in samples for each in sample.decisions), default=0))


def strip(sample: Sample) -> list[tuple[str, list[tuple[bool, str]]]]:
    """For each branch its name, and for each step whether it was reused and in words why.

    A run that decides nothing computes every step; its strip has one cell a step.
    """
    if not sample.decisions:
        steps = round(sample.computed_steps)
        return [("", [(False, f"step {step + 1} of {steps}: computed") for step in range(steps)])]
    steps = 1 + max(each.step for each in sample.decisions)
    branches: dict[str, list[tuple[bool, str]]] = {}
    for each in sample.decisions:
        # A step in which a branch was not called keeps its place, so that all strips share one axis.
        cells = branches.setdefault(each.branch, [(True, f"step {step + 1}: not called") for step in range(steps)])
        words = f"step {each.step + 1}: {'reused' if each.reused else 'computed'} ({each.reason})"
        words += "" if each.drift is None else f", drift {each.drift:.3g}"
        words += "" if each.error is None else f", forecast error {each.error:.2g}"
        cells[each.step] = (each.reused, words)
    return [("" if len(branches) == 1 else branch, cells) for branch, cells in branches.items()]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One branch of one run, as paths of an SVG that is as many units wide as the run has steps, and 100 high.

    Attributes:
        run, tone: name and colour of the run.
        branch: counted from 0 within the run.
        path: joins the values.
        dots: a mark on each value, drawn by a round line cap.
    """

    run: str
    tone: str
    branch: int
    path: str
    dots: str


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity over the steps, on a logarithmic scale from the lowest to the highest value of all runs.

    Attributes:
        reading: how to read it, in one sentence.
    """

    name: str
    reading: str
    low: float
    high: float
    lines: tuple[Line, ...]


def curves(runs: tuple[ShownRun, ...], number: int) -> list[Curve]:
    """Drift and forecast error of the runs for one prompt, each only where some run measured it."""
    return [
        curve
        for name, field in (("drift", "drift"), ("forecast error", "error"))
        if (curve := _curve(runs, number, name, field))
    ]


def _curve(runs: tuple[ShownRun, ...], number: int, name: str, field: str) -> Curve | None:
    series: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for run in runs:
        for each in run.samples[number].decisions:
            value = getattr(each, field)
            if value is not None and value > 0.0:
                series.setdefault((run.name, run.tone, each.branch), []).append((each.step, value))
    values = [value for points in series.values() for _, value in points]
    if not values:
        return None
    low, high = min(values), max(values)
    span = math.log(high / low) or 1.0
    lines: list[Line] = []
    for (run_name, tone, _), points in series.items():
        places = [f"{step + 0.5:g} {HEIGHT * (1.0 - math.log(value / low) / span):.1f}" for step, value in points]
        lines.append(
            Line(
                run=run_name,
                tone=tone,
                branch=sum(line.run == run_name for line in lines),
                path="M" + "L".join(places),
                dots="".join(f"M{place}h0" for place in places),
            )
        )
    return Curve(name=name, reading=READINGS[name], low=low, high=high, lines=tuple(lines))
