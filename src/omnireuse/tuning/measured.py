"""What a full run leaves for the plans of later processes: the inner products of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnireuse.base.records import Record
from omnireuse.planning.path import OutputProducts

__all__ = ["HEAD", "Measured"]

HEAD = {"measured format": 2}


class Measured(Record, frozen=True, kw_only=True):
    """The full runs of one configuration.

    Attributes:
        runs: of each measured call the shape of its products, their values in order, and the effects.
    """

    runs: tuple[tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]], ...]

    @classmethod
    def of(cls, products: Sequence[OutputProducts]) -> Measured:
        """From the products of each call."""
        each = [(run.products, run.effects) for run in products]
        return cls(runs=tuple((a.shape, tuple(a.ravel().tolist()), tuple(b.tolist())) for a, b in each))

    def products(self) -> list[OutputProducts]:
        """The products of each call."""
        return [OutputProducts(products=np.reshape(a, shape), effects=np.array(b)) for shape, a, b in self.runs]
