"""Spectrum: every block-stack output so far, fitted with Chebyshev polynomials, gives the next ones.

Source: "Adaptive Spectral Feature Forecasting for Diffusion Sampling Acceleration", arXiv 2603.01623, and its public
code (https://github.com/hanjq17/Spectrum): features of the last block against the step number, ridge regression on
T₀…T₄ over the whole run, mixed with a line through the last two; windows that grow after each computed step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

import omnireuse
from omnireuse.forecasters.base import PolynomialMemory, combine
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, reuse

__all__ = ["SPECTRUM", "Chebyshev", "chebyshev_weights", "growing_windows"]

WARMUP = 5


def growing_windows(total: int, *, window: float = 2.0, growth: float = 0.75, warmup: int = WARMUP) -> list[int]:
    """The computed steps: the warm-up, then one at the end of each window, which grows by `growth` every time."""
    computed, reused = [], 0
    for step in range(total):
        is_due = step < warmup or (reused + 1) % math.floor(window) == 0
        if is_due and step >= warmup:
            window = round(window + growth, 3)
        reused = 0 if is_due else reused + 1
        computed += [step] if is_due else []
    return computed


def chebyshev_weights(
    nodes: Sequence[float], coordinate: float, *, span: float, degree: int, ridge: float, share: float
) -> list[float]:
    """The weight of each node's value in the forecast at `coordinate`.

    Args:
        nodes: step numbers, oldest first, at least two.
        span: steps of the run; 0…span is mapped to −1…1.
        degree: of the highest polynomial.
        ridge: what is added to the diagonal of the normal equations.
        share: of the Chebyshev fit; the rest is a line through the last two values.
    """
    places = np.polynomial.chebyshev.chebvander(2 * np.asarray([*nodes, coordinate]) / span - 1, degree)
    design, row = places[:-1], places[-1]
    fitted = row @ np.linalg.solve(design.T @ design + ridge * np.eye(degree + 1), design.T)
    ahead = (coordinate - nodes[-1]) / (nodes[-1] - nodes[-2])
    fitted *= share
    fitted[-2] -= (1 - share) * ahead
    fitted[-1] += (1 - share) * (1 + ahead)
    weights: list[float] = fitted.tolist()
    return weights


@dataclass(frozen=True, kw_only=True)
class Chebyshev(omnireuse.Forecaster):
    """The forecast of Spectrum. Every value of a run is kept, `span` of them at most.

    Args:
        span, degree, ridge, share: as for `chebyshev_weights`.
    """

    span: int
    degree: int = 4
    ridge: float = 0.1
    share: float = 1.0

    def start(self, branch: int = 0) -> PolynomialMemory:
        return _Series(self)


class _Series(PolynomialMemory):
    def __init__(self, fit: Chebyshev) -> None:
        super().__init__(fit.span - 1)
        self._fit = fit

    def predict(self, coordinate: float) -> torch.Tensor:
        if len(self._nodes) == 1:
            return self.last
        weights = chebyshev_weights([node for node, _ in self._nodes], coordinate, **vars(self._fit))
        return combine([weights[-1], *weights[:-1]], [self.last, *self.values[:-1]])


def _grid(subject: Subject) -> Iterator[Setting]:
    steps = subject.workload.steps
    # The code does not compute the last step by design; computing it serves the method as it serves TaylorSeer.
    for last in (True, False):
        for growth in (0.0, 0.25, 0.75, 1.5, 3.0):
            computed = tuple(growing_windows(steps, growth=growth))
            policy = omnireuse.Steps(steps=computed, compute_last=last)
            for w in (0.5, 1.0):
                forecaster = Chebyshev(span=steps, share=w)
                options = {
                    "policy": policy,
                    "forecaster": forecaster,
                    "region": "blocks",
                    "prediction_target": "output",
                }
                yield reuse("Spectrum", {**options, "axis": "steps"}, window=2, growth=growth, w=w, last=last)


SPECTRUM = Method(key="spectrum", name="Spectrum", family="peer", grid=_grid)
