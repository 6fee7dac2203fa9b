"""Weights fitted at some noise levels, carried over to a run at others.

Each weighted sum is written in Newton's form, as factors of the divided differences of the known outputs: 1, 0, 0 holds
the last output, 1, 1, 0 follows the line through the last two, and so on. These factors hardly depend on the spacing,
so a gap takes them from the gaps of all fitted schedules that are most like it. The correction after a gap is written
in the same way, in units of the gap's moments, because it moves the latents by what the gap's forecasts missed.

Noise falls to 0 after the last step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fit", "carried_weights"]

Floats = NDArray[np.float64]
Weights = tuple[tuple[float, ...], ...]
Fit = tuple[tuple[int, ...], Weights]
"""The computed steps, and the weights of each step, newest output first."""

SCALES: Floats = np.array([0.05, 0.2, 0.2, 0.125])
"""Scales of unlike gaps: in noise at their middle, and in the logarithms of their width, of the distance between the
last two computed steps, and of the number of computed steps. Chosen on the reference pipeline for images, judged on
that for clips (``python -m bench travel``)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Gap:
    """The steps from one computed step to the next.

    Attributes:
        nodes: noise of the computed steps before it, newest first.
        end: noise at the next computed step.
        reused: noise of the reused steps.
        lengths: by how much noise falls in each of them.
        count: computed steps of the run.
    """

    nodes: Floats
    end: float
    reused: Floats
    lengths: Floats
    count: int

    @property
    def width(self) -> float:
        return float(self.nodes[0] - self.end)

    @property
    def features(self) -> Floats:
        before = self.nodes[1] - self.nodes[0] if len(self.nodes) > 1 else self.width
        found: Floats = np.array([(self.nodes[0] + self.end) / 2, *np.log([self.width, before, self.count])])
        return found / SCALES

    def moments(self, number: int) -> Floats:
        """∫ (distance from the last computed step)^k over the reused steps, for k < `number`."""
        distances = self.nodes[0] - self.reused
        return np.array([(self.lengths * distances**k).sum() for k in range(number)])


@dataclass(frozen=True, kw_only=True, eq=False)
class _FittedGap:
    """A gap with what was fitted in it.

    Attributes:
        places: of the reused steps, as shares of the gap's width.
        factors: of the divided differences, one row a reused step; NaN where there was no such difference.
        correction: factors of the first computed step after the gap; empty without one.
    """

    gap: _Gap
    places: Floats
    factors: Floats
    correction: Floats

    def factor(self, order: int, place: float, width: float) -> float:
        """The factor of this order's divided difference, in a gap of another width; NaN where there was none."""
        known = ~np.isnan(self.factors[:, order]) if order < self.factors.shape[1] else np.zeros(0, dtype=bool)
        if not known.any():
            return math.nan
        found = float(np.interp(place, self.places[known], self.factors[known, order]))
        # A held output falls short the more the wider the gap is.
        return found if order else max(0.0, 1 + (found - 1) * width / self.gap.width)

    def corrected(self, order: int, width: float) -> float:
        """The same of the correction."""
        if order >= len(self.correction):
            return math.nan
        return float(self.correction[order]) * (1.0 if order else width / self.gap.width)


def carried_weights(
    fits: Iterable[Fit], made_at: Sequence[float], here: Sequence[float], computed: Sequence[int]
) -> Weights | None:
    """The weights of each step of a run at other noise levels; None where nothing was fitted.

    Args:
        fits: schedules with their weights, of one branch of guidance.
        made_at: noise at each step of the runs that they were fitted on, falling.
        here: the same of this run.
        computed: the steps that this run computes.
    """
    known = [each for fit in fits for each in _fitted_gaps(fit, np.array([*made_at, 0.0]))]
    if not known:
        return None
    noises = np.array([*here, 0.0])
    found: list[tuple[float, ...]] = [() for _ in here]
    for first, end, gap in _gaps(noises, computed):
        unlike = np.array([np.square(each.gap.features - gap.features).sum() for each in known])
        for step in range(first + 1, end):
            place = (noises[first] - noises[step]) / gap.width
            factors = [
                _mean([each.factor(k, place, gap.width) for each in known], unlike)
                for k in range(min(len(gap.nodes), max(each.factors.shape[1] for each in known)))
            ]
            basis = _newton(gap.nodes[: len(factors)], noises[step])
            found[step] = _tuple(_differences(gap.nodes[: len(factors)]).T @ (np.array(factors) * basis))
        most = max(len(each.correction) for each in known)
        if end == len(here) or not most:
            continue
        nodes = np.array([gap.end, *gap.nodes])[:most]
        factors = [_mean([each.corrected(k, gap.width) for each in known], unlike) for k in range(len(nodes))]
        moved = _differences(nodes).T @ (np.array(factors) * gap.moments(len(nodes)))
        found[end] = _tuple(moved / (noises[end] - noises[end + 1]) + np.eye(len(nodes))[0])
    return tuple(found)


def _fitted_gaps(fit: Fit, noises: Floats) -> list[_FittedGap]:
    computed, weights = fit
    found = []
    for first, end, gap in _gaps(noises, computed):
        most = max(len(weights[step]) for step in range(first + 1, end))
        factors = np.full((end - first - 1, most), np.nan)
        for row, step in enumerate(range(first + 1, end)):
            given = np.array(weights[step])
            nodes = gap.nodes[: len(given)]
            factors[row, : len(given)] = np.linalg.solve(_differences(nodes).T, given) / _newton(nodes, noises[step])
        correction = np.empty(0)
        if end < len(weights) and weights[end]:
            given = np.array(weights[end])
            moved = (given - np.eye(len(given))[0]) * (noises[end] - noises[end + 1])
            nodes = np.array([gap.end, *gap.nodes])[: len(given)]
            correction = np.linalg.solve(_differences(nodes).T, moved) / gap.moments(len(given))
        places = (gap.nodes[0] - gap.reused) / gap.width
        found.append(_FittedGap(gap=gap, places=places, factors=factors, correction=correction))
    return found


def _gaps(noises: Floats, computed: Sequence[int]) -> Iterable[tuple[int, int, _Gap]]:
    """The computed steps that reused ones follow, the steps where these end, and the gap between them."""
    total = len(noises) - 1
    for number, (first, end) in enumerate(zip(computed, [*computed[1:], total], strict=True)):
        if end > first + 1:
            reused = slice(first + 1, end)
            yield (
                first,
                end,
                _Gap(
                    nodes=noises[list(reversed(computed[: number + 1]))],
                    end=float(noises[end]),
                    reused=noises[reused],
                    lengths=noises[reused] - noises[first + 2 : end + 1],
                    count=len(computed),
                ),
            )


def _mean(values: Sequence[float], unlike: Floats) -> float:
    """The mean of those that are not NaN, weighted by the likeness of gaps."""
    known = ~np.isnan(values)
    shares = np.exp((unlike[known].min() - unlike[known]) / 2)
    return float(shares @ np.array(values)[known] / shares.sum())


def _differences(nodes: Floats) -> Floats:
    """Row k: what the k-th divided difference over the first k + 1 nodes takes of each value."""
    table = np.zeros((len(nodes), len(nodes)))
    for k in range(len(nodes)):
        for j in range(k + 1):
            table[k, j] = 1 / np.prod([nodes[j] - nodes[i] for i in range(k + 1) if i != j])
    return table


def _newton(nodes: Floats, noise: float) -> Floats:
    """The factor of the k-th divided difference at this noise: ∏ (noise − node) over the first k nodes."""
    return np.array([np.prod(noise - nodes[:k]) for k in range(len(nodes))])


def _tuple(values: Floats) -> tuple[float, ...]:
    return tuple(map(float, values))
