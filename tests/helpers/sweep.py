"""Parameters of a sweep: a few run in `make test`, all of them in `make test-all`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def sweep(values: Iterable[Any], *, quick: Collection[Any]) -> list[Any]:
    """`values` as parameters of a test; those that are not in `quick` are marked `sweep`.

    What is in `quick` stands for the others: one of each kind of model, loop or scheduler that the code treats alike.
    """
    values = list(values)
    unknown = [value for value in quick if value not in values]
    assert not unknown, f"not among the values: {unknown}"
    rest = [value if isinstance(value, tuple) else (value,) for value in values if value not in quick]
    return [
        *(value for value in values if value in quick),
        *(pytest.param(*value, marks=pytest.mark.sweep) for value in rest),
    ]


def crossed(*axes: Sequence[Any]) -> list[Any]:
    """Each value with each of the other axes as parameters of a test; `make test` takes each value once or more."""
    longest = max(map(len, axes))
    quick = [tuple(axis[place % len(axis)] for axis in axes) for place in range(longest)]
    return sweep(itertools.product(*axes), quick=quick)
