"""Local search from good schedules to a better one, on true runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import accumulate, combinations, pairwise
from typing import Protocol

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate, Scores

__all__ = ["BATCH", "Scorer", "neighbours", "refine", "sure_gain"]

BATCH = 4
"""Neighbours that are scored before one of them is taken. A constant, so that the search does not depend on the number
of workers."""

Scored = tuple[Candidate, Scores]


class Scorer(Protocol):
    """Scores candidates."""

    def scores(self, candidates: Sequence[Candidate]) -> Iterator[Scored]:
        """Each candidate with its scores, in any order. Closing the iterator gives up the rest."""


def refine(
    scorer: Scorer,
    initial: Iterable[Candidate],
    *,
    forecasters: Sequence[str],
    total: int,
    evaluations: int,
    margin: float,
    rng: random.Random,
    late: Callable[[], bool] = lambda: False,
) -> Generator[Scored, None, None]:
    """Score all initial candidates, then neighbours of the best as long as one is better beyond the noise.

    Args:
        initial: the first of them is the one to beat.
        forecasters: names of those to try.
        total: steps of a run.
        evaluations: most candidates that are scored, the initial ones included.
        margin: standard errors that a gain must exceed, see `sure_gain`.
        rng: determines the order in which neighbours are tried.
        late: whether time is up. The first candidate is scored in any case.

    Yields:
        The best so far, once for each candidate that was scored.
    """
    best: Scored | None = None
    seen: set[Candidate] = set()
    queue = list(dict.fromkeys(initial))
    size = len(queue)
    while queue and len(seen) < evaluations:
        batch = queue[: min(size, evaluations - len(seen))]
        queue = queue[len(batch) :]
        seen.update(batch)
        scored: dict[Candidate, Scores] = {}
        leader = best
        for candidate, scores in scorer.scores(batch):
            scored[candidate] = scores
            # Always from the whole batch in its own order, because results come in any order.
            leader = _leader(best, [(each, scored[each]) for each in batch if each in scored], margin)
            yield leader
            if late():
                return
        if leader is not None and leader is not best:
            best = leader
            around = neighbours(best[0], forecasters, total)
            queue = [each for each in dict.fromkeys(around) if each not in seen]
            rng.shuffle(queue)
        size = BATCH


def sure_gain(scores: Scores, over: Scores, margin: float) -> float:
    """Mean gain over the same prompts, less `margin` standard errors of that mean.

    The best of many candidates on few prompts is in part luck. A single prompt gives no estimate of the noise, and its
    gain counts whole.
    """
    gains = [new - old for new, old in zip(scores, over, strict=True)]
    mean = math.fsum(gains) / len(gains)
    if len(gains) < 2:
        return mean
    variance = math.fsum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1)
    return mean - margin * math.sqrt(variance / len(gains))


def _leader(best: Scored | None, challengers: Sequence[Scored], margin: float) -> Scored:
    holder = challengers[0] if best is None else best
    challenger = max(challengers, key=lambda each: sure_gain(each[1], holder[1], margin))
    return challenger if sure_gain(challenger[1], holder[1], margin) > 0 else holder


def neighbours(candidate: Candidate, forecasters: Iterable[str], total: int) -> Iterator[Candidate]:
    """Candidates one change away, with as many computed steps; some come twice.

    One step goes 1 or 2 places up or down, two gaps of different length swap, or the forecaster changes. The first step
    stays. The last one moves only where weights are fitted: other forecasters lose what comes after it.
    """
    steps = candidate.steps
    for changed in (*_shifted(steps, total if candidate.forecaster == FITTED else steps[-1]), *_swapped(steps)):
        yield Candidate(steps=changed, forecaster=candidate.forecaster)
    for forecaster in forecasters:
        if forecaster != candidate.forecaster and (forecaster == FITTED or steps[-1] == total - 1):
            yield Candidate(steps=steps, forecaster=forecaster)


def _shifted(steps: tuple[int, ...], end: int) -> Iterator[tuple[int, ...]]:
    for step in steps[1:]:
        for place in (step - 2, step - 1, step + 1, step + 2):
            if step < end and steps[0] < place < end and place not in steps:
                yield tuple(sorted({*steps} - {step} | {place}))


def _swapped(steps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    gaps = [after - before for before, after in pairwise(steps)]
    for i, j in combinations(range(len(gaps)), 2):
        if gaps[i] != gaps[j]:
            swapped = gaps.copy()
            swapped[i], swapped[j] = gaps[j], gaps[i]
            yield tuple(accumulate(swapped, initial=steps[0]))
