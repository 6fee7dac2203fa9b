"""A Taylor expansion whose powers are exchanged for contracted Hermite polynomials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from omnireuse.diffusion.reuse.forecasters.base import Forecaster, PolynomialMemory, check_order
from omnireuse.diffusion.reuse.validation import field_error, is_number

__all__ = ["Hermite", "hermite_weights"]


@dataclass(frozen=True, kw_only=True)
class Hermite(Forecaster):
    """last + Σ derivativeₙ / n! · H̃ₙ(x) with H̃ₙ(x) = σⁿ Hₙ(σ x), Hₙ the physicists' Hermite polynomials.

    Source: HiCache, arXiv 2508.16984. Ours: the derivatives come from divided differences, which are exact at uneven
    spacing, and x is measured in the distance between the last two computed values; the paper counts x in steps.

    The basis does not contain the powers, so a line is followed with 2σ² of its slope, and an even order adds a share
    of the curvature at x = 0 already. Only constants are exact.

    Args:
        order: degree, 1 to 3; order + 1 values are kept.
        contraction: σ in (0, 1). 0.71 takes a slope as it is; less damps it.
    """

    order: int = 2
    contraction: float = 0.5

    def __post_init__(self) -> None:
        check_order(self, do="order 0 is the forecaster 'hold'")
        if not (is_number(self.contraction) and 0 < self.contraction < 1):
            raise field_error(self, "contraction", "be a number between 0 and 1, both excluded")

    def start(self, branch: int = 0) -> PolynomialMemory:
        return PolynomialMemory(self.order, partial(hermite_weights, contraction=self.contraction))


def hermite_weights(nodes: Sequence[float], coordinate: float, *, contraction: float) -> list[float]:
    """The weight of each node's value in the forecast at `coordinate`; they sum to one.

    Args:
        nodes: coordinates, oldest first, at least two.
        coordinate: where to forecast.
        contraction: σ.
    """
    unit = abs(nodes[-1] - nodes[-2])
    x = (coordinate - nodes[-1]) / unit
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
