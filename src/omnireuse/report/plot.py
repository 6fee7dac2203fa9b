"""Where the points of a case stand in a plot of quality against compute, in per cent of its width and height."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, pairwise

from omnireuse.errors import MissingExtraError
from omnireuse.report.pareto import Case, Mean, Point

try:
    from matplotlib.ticker import MaxNLocator
except ImportError as missing:
    raise MissingExtraError("the plot of the page", "report") from missing

__all__ = ["SHAPES", "Dot", "Plot", "plot_case"]

SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "square": "M-4.5-4.5h9v9h-9z",
    "diamond": "M0-6.2 6.2 0 0 6.2-6.2 0z",
    "triangle": "M0-6 5.7 4.4H-5.7z",
    "wedge": "M0 6-5.7-4.4H5.7z",
}
"""Outlines around their centre in pixels: whoever cannot tell two colours apart tells two shapes."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One point with figures.

    Attributes:
        index: of the point in its case.
        x, y, low, high: its place and the ends of its interval, per cent from the left and the top.
        tone, shape: of its method.
        front: whether no other point is at least as good with at most as many computed steps.
    """

    index: int
    point: Point
    x: float
    y: float
    low: float
    high: float
    tone: str
    shape: str
    front: bool


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A case laid out.

    Attributes:
        dots: the floor's first, so that what is held against it lies above; each from the left to the right.
        lines: a pair of dots for each piece of a line that joins the settings of a method.
        looks: method -> tone and shape.
        x_ticks, y_ticks: place and label.
    """

    dots: tuple[Dot, ...]
    lines: tuple[tuple[Dot, Dot], ...]
    looks: dict[str, tuple[str, str]]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def plot_case(case: Case, tones: Mapping[str, str] | None = None) -> Plot:
    """Lay `case` out: computed steps from 0 to the full run, PSNR over the range that the intervals need.

    Args:
        tones: method -> colour, where the page has given it one already.
    """
    drawn = [
        (index, point, point.computed_steps, point.psnr)
        for index, point in enumerate(case.points)
        if point.computed_steps is not None and point.psnr is not None and _is_finite(point.computed_steps, point.psnr)
    ]
    drawn.sort(key=lambda item: (item[1].family != "floor", item[2], item[3].mean))
    looks = _looks(case, tones or {})
    bounds = [value for *_, psnr in drawn for value in (psnr.low, psnr.high)] or [0.0, 1.0]
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(min(bounds), max(bounds))
    bottom, top = float(ticks[0]), float(ticks[-1])

    def height(value: float) -> float:
        return 100.0 * (top - value) / (top - bottom)

    dots = tuple(
        Dot(
            index=index,
            point=point,
            x=100.0 * steps / case.steps,
            y=height(psnr.mean),
            low=height(psnr.low),
            high=height(psnr.high),
            tone=looks[point.method][0],
            shape=looks[point.method][1],
            front=not any(
                s <= steps and p.mean >= psnr.mean and (s < steps or p.mean > psnr.mean) for _, _, s, p in drawn
            ),
        )
        for index, point, steps, psnr in drawn
    )
    lines = tuple(pair for method in looks for pair in pairwise(dot for dot in dots if dot.point.method == method))
    steps = MaxNLocator(nbins=7, integer=True).tick_values(0, case.steps)
    return Plot(
        dots=dots,
        lines=lines,
        looks=looks,
        x_ticks=tuple((100.0 * tick / case.steps, f"{tick:g}") for tick in steps if 0 <= tick <= case.steps),
        y_ticks=tuple((height(tick), f"{tick:g}") for tick in ticks),
    )


def _is_finite(steps: float, psnr: Mean) -> bool:
    return all(map(math.isfinite, (steps, psnr.mean, psnr.low, psnr.high)))


def _looks(case: Case, tones: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """A floor is a hollow circle in the quiet colour; every other method has a pair of colour and shape of its own."""
    ours = ((tone, shape) for shape in cycle(SHAPES) for tone in ("highlight",))
    peers = ((tone, shape) for shape in cycle(list(SHAPES)[1:]) for tone in ("first", "second", "third"))
    looks: dict[str, tuple[str, str]] = {}
    for point in case.points:
        if point.method not in looks:
            looks[point.method] = (
                ("muted", "circle")
                if point.family == "floor"
                else (tones[point.method], "circle")
                if point.method in tones
                else next(ours if point.family == "ours" else peers)
            )
    return looks
