"""Where a schedule may go in one move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, combinations, pairwise

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate

__all__ = ["moves"]


def moves(candidate: Candidate, forecasters: Iterable[str], total: int) -> Iterator[Candidate]:
    """Neighbours of a candidate with as many computed steps, the first in place.

    One step goes 1 or 2 places up or down, two gaps of different length swap, or another forecaster fills the gaps. The
    last computed step moves only where weights are fitted: others are lost after it. Some neighbours are reached in two
    ways.
    """
    steps = candidate.steps
    for moved in (*_shifted(steps, total if candidate.forecaster == FITTED else steps[-1]), *_swapped(steps)):
        yield Candidate(steps=moved, forecaster=candidate.forecaster)
    for forecaster in forecasters:
        if forecaster != candidate.forecaster and (forecaster == FITTED or steps[-1] == total - 1):
            yield Candidate(steps=steps, forecaster=forecaster)


def _shifted(steps: tuple[int, ...], end: int) -> Iterator[tuple[int, ...]]:
    for step in steps[1:]:
        for moved in (step - 2, step - 1, step + 1, step + 2):
            if step < end and steps[0] < moved < end and moved not in steps:
                yield tuple(sorted({*steps} - {step} | {moved}))


def _swapped(steps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    gaps = [after - before for before, after in pairwise(steps)]
    for i, j in combinations(range(len(gaps)), 2):
        if gaps[i] != gaps[j]:
            swapped = gaps.copy()
            swapped[i], swapped[j] = gaps[j], gaps[i]
            yield tuple(accumulate(swapped, initial=steps[0]))
