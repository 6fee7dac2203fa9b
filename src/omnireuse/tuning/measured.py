"""What a full run leaves for the plans of later processes: the inner products of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnireuse.base.records import Record
from omnireuse.planning.path import OutputProducts

__all__ = ["HEAD", "Measured"]

HEAD = {"measured format": 1}


class _Run(Record, frozen=True, kw_only=True):
    """`OutputProducts` as numbers: the values in order of their shape."""

    shape: tuple[int, int, int, int, int]
    products: tuple[float, ...]
    effects: tuple[float, ...]


class Measured(Record, frozen=True, kw_only=True):
    """The full runs of one configuration.

    Attributes:
        runs: one for each measured call.
    """

    runs: tuple[_Run, ...]

    @classmethod
    def of(cls, products: Sequence[OutputProducts]) -> Measured:
        """From the products of each call."""
        return cls(
            runs=tuple(
                _Run(
                    shape=each.products.shape,
                    products=tuple(each.products.ravel().tolist()),
                    effects=tuple(each.effects.tolist()),
                )
                for each in products
            )
        )

    def products(self) -> list[OutputProducts]:
        """The products of each call."""
        return [
            OutputProducts(products=np.reshape(run.products, run.shape), effects=np.array(run.effects))
            for run in self.runs
        ]
