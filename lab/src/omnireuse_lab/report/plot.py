"""Places of a case's points in a plot of quality against compute, in per cent of its width and height."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle, pairwise

from matplotlib.ticker import MaxNLocator

from omnireuse.pipelines import IDENTICAL_DB
from omnireuse_lab.front import front, leading
from omnireuse_lab.record import Case, Point

__all__ = ["SHAPES", "Dot", "Plot", "plot_case"]

SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "square": "M-4.5-4.5h9v9h-9z",
    "diamond": "M0-6.2 6.2 0 0 6.2-6.2 0z",
    "triangle": "M0-6 5.7 4.4H-5.7z",
    "wedge": "M0 6-5.7-4.4H5.7z",
}
"""Outlines around their centre in pixels, so that methods differ in shape as well as in colour."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One point with figures.

    Attributes:
        index: place of the point in its case.
        x, y, low, high: its place and the ends of its interval, per cent from the left and the top.
        tone, shape: of its method.
        front: whether it reuses, and no other point is as good with as few computed steps.
        own_front: whether no other point of its method is.
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
    own_front: bool


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A case laid out.

    Attributes:
        dots: baselines first, so that the others lie above them; each from the left to the right.
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
        tones: method -> colour, if the page has chosen it already.
    """
    drawn = [
        (index, point, point.computed_steps, point.psnr)
        for index, point in enumerate(case.points)
        if point.computed_steps is not None and point.psnr is not None
    ]
    looks = _looks((point for _, point, _, _ in drawn), tones or {})
    drawn.sort(key=lambda item: (item[1].family != "baseline", item[2], -item[3].mean))
    # Identical pictures stand on the upper edge; a scale up to 100 dB would press the others together.
    bounds = [value for *_, psnr in drawn for value in (psnr.low, psnr.high) if psnr.mean < IDENTICAL_DB - 1.0]
    bounds = bounds or [0.0, IDENTICAL_DB]
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(min(bounds), max(bounds))
    bottom, top = float(ticks[0]), float(ticks[-1])

    def height(value: float) -> float:
        return round(min(max(100.0 * (top - value) / (top - bottom), 0.0), 100.0), 2)

    points = [point for _, point, _, _ in drawn]
    best = set(map(id, leading(case)))
    own_best = {id(each) for name in looks for each in front(point for point in points if point.method == name)}
    dots = tuple(
        Dot(
            index=index,
            point=point,
            x=round(100.0 * steps / case.steps, 2),
            y=height(psnr.mean),
            low=height(psnr.low),
            high=height(psnr.high),
            tone=looks[point.method][0],
            shape=looks[point.method][1],
            front=id(point) in best,
            own_front=id(point) in own_best,
        )
        for index, point, steps, psnr in drawn
    )
    own = {name: [dot for dot in dots if dot.point.method == name and dot.own_front] for name in looks}
    steps = MaxNLocator(nbins=7, integer=True).tick_values(0, case.steps)
    return Plot(
        dots=dots,
        lines=tuple(pair for each in own.values() for pair in pairwise(each)),
        looks=looks,
        x_ticks=tuple((round(100.0 * tick / case.steps, 2), f"{tick:g}") for tick in steps if 0 <= tick <= case.steps),
        y_ticks=tuple((height(tick), f"{tick:g}") for tick in ticks),
    )


def _looks(points: Iterable[Point], tones: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """A pair of colour and shape for each method; baselines are grey."""
    pairs = {
        "baseline": cycle(("muted", shape) for shape in SHAPES),
        "ours": cycle((tone, shape) for tone in ("highlight", "good") for shape in SHAPES),
        "peer": cycle((tone, shape) for shape in reversed(SHAPES) for tone in ("first", "second", "third")),
    }
    looks: dict[str, tuple[str, str]] = {}
    for point in points:
        if point.method not in looks:
            given = tones.get(point.method)
            looks[point.method] = (given, "circle") if given else next(pairs[point.family])
    return looks
