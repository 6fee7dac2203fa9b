"""A Taylor expansion whose powers are exchanged for contracted Hermite polynomials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from omnireuse.diffusion.reuse.forecasters.base import Forecaster
from omnireuse.diffusion.reuse.forecasters.polynomial import PolynomialMemory
from omnireuse.diffusion.reuse.validation import field_error

__all__ = ["Hermite", "hermite_weights"]


@dataclass(frozen=True, kw_only=True)
class Hermite(Forecaster):
    """last + Σ derivativeₙ / n! · H̃ₙ(x) with H̃ₙ(x) = σⁿ Hₙ(σ x), Hₙ the physicists' Hermite polynomials.

    Source: HiCache, arXiv 2508.16984: the dually scaled basis in the place of TaylorSeer's powers. Ours: the
    derivatives come from divided differences, which are exact at uneven spacing, and x is measured in the distance
    between the last two computed values, so that one contraction means the same on every schedule; the paper counts x
    in steps.

    The basis does not contain the powers, so a line is not followed exactly but with 2σ² of its slope, and an even
    order adds a share of the curvature at x = 0 already. Only constants are exact.

    Args:
        order: degree, 1 to 3; order + 1 values are kept.
        contraction: σ in (0, 1). 0.71 takes a slope as it is; less damps it.
    """

    order: int = 2
    contraction: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.order, int) or isinstance(self.order, bool) or not 1 <= self.order <= 3:
            raise field_error(self, "order", "be 1, 2 or 3", do="order 0 is the forecaster 'hold'")
        sigma = self.contraction
        if isinstance(sigma, bool) or not isinstance(sigma, (int, float)) or not 0 < sigma < 1:
            raise field_error(self, "contraction", "be a number between 0 and 1, both excluded")

    def start(self, branch: int = 0) -> PolynomialMemory:
        """An empty memory."""
        return PolynomialMemory(self.order, partial(hermite_weights, contraction=self.contraction))


def hermite_weights(nodes: Sequence[float], at: float, *, contraction: float) -> list[float]:
    """The weight of each node's value in the forecast at `at`; they sum to one.

    Args:
        nodes: coordinates, oldest first, at least two.
        at: where to forecast.
        contraction: σ.
    """
    unit = abs(nodes[-1] - nodes[-2])
    x = (at - nodes[-1]) / unit
    basis = [1.0, 2 * contraction * x]
    while len(basis) < len(nodes):
        n = len(basis) - 1
        basis.append(2 * contraction * x * basis[n] - 2 * n * basis[n - 1])
    scaled = [h * contraction**n for n, h in enumerate(basis)]
    # Row n of the inverse takes the nodes' values to the n-th coefficient of their polynomial around the last node,
    # which is derivative / n! in this unit.
    powers = np.vander([(node - nodes[-1]) / unit for node in nodes], increasing=True)
    weights: list[float] = (np.asarray(scaled) @ np.linalg.inv(powers)).tolist()
    return weights
