"""Where a schedule may go in one move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, combinations, pairwise

from omnireuse.search.candidate import Candidate

__all__ = ["moves"]


def moves(candidate: Candidate, forecasters: Iterable[str]) -> Iterator[Candidate]:
    """Neighbours of a candidate with as many computed steps, the first and the last in place.

    One step goes 1 or 2 places up or down, two gaps of different length swap, or another forecaster fills the gaps.
    Some neighbours are reached in two ways.
    """
    for steps in (*_shifted(candidate.steps), *_swapped(candidate.steps)):
        yield Candidate(steps=steps, forecaster=candidate.forecaster)
    for forecaster in forecasters:
        if forecaster != candidate.forecaster:
            yield Candidate(steps=candidate.steps, forecaster=forecaster)


def _shifted(steps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for step in steps[1:-1]:
        for moved in (step - 2, step - 1, step + 1, step + 2):
            if steps[0] < moved < steps[-1] and moved not in steps:
                yield tuple(sorted({*steps} - {step} | {moved}))


def _swapped(steps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    gaps = [after - before for before, after in pairwise(steps)]
    for i, j in combinations(range(len(gaps)), 2):
        if gaps[i] != gaps[j]:
            swapped = gaps.copy()
            swapped[i], swapped[j] = gaps[j], gaps[i]
            yield tuple(accumulate(swapped, initial=steps[0]))
