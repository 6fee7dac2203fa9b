"""From good schedules to a better one, judged on true runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterable, Sequence

from omnireuse.diffusion.calibration.candidate import Candidate
from omnireuse.diffusion.calibration.evaluator import Scorer, Scores
from omnireuse.diffusion.calibration.moves import moves

__all__ = ["BATCH", "refine", "sure_gain"]

#: Moves that are tried before one of them is taken. A constant, so that the search is the same for any number of
#: workers: what spreads over them is the prompts of all moves of a batch.
BATCH = 4

Scored = tuple[Candidate, Scores]


def refine(
    scorer: Scorer,
    starts: Iterable[Candidate],
    *,
    forecasters: Sequence[str],
    total: int,
    evaluations: int,
    margin: float,
    rng: random.Random,
    late: Callable[[], bool] = lambda: False,
) -> Generator[Scored, None, None]:
    """Try all starts, then moves from the best as long as one helps beyond the noise.

    Args:
        scorer: says what candidates are worth; asked once for each.
        starts: what to begin from. The first one is what others must beat.
        forecasters: names of those to try.
        total: steps of a run.
        evaluations: most candidates that are scored, the starts among them.
        margin: standard errors that a gain must exceed, see `sure_gain`.
        rng: decides in which order moves are tried.
        late: whether time is up; the first candidate is scored in any case.

    Yields:
        The best so far, once for every candidate that was scored.
    """
    best: Scored | None = None
    seen: set[Candidate] = set()
    queue = list(dict.fromkeys(starts))
    size = len(queue)
    while queue and len(seen) < evaluations:
        asked = queue[: min(size, evaluations - len(seen))]
        queue = queue[len(asked) :]
        seen.update(asked)
        scored: dict[Candidate, Scores] = {}
        leader = best
        for candidate, scores in scorer.scores(asked):
            scored[candidate] = scores
            # Always from the batch as a whole and in its order: results may come in any.
            leader = _leader(best, [(each, scored[each]) for each in asked if each in scored], margin)
            yield leader
            if late():
                return
        if leader is not None and leader is not best:
            best = leader
            around = moves(best[0], forecasters, total)
            queue = [move for move in dict.fromkeys(around) if move not in seen]
            rng.shuffle(queue)
        size = BATCH


def sure_gain(scores: Scores, over: Scores, margin: float) -> float:
    """Mean gain over the same prompts, less `margin` standard errors of that mean.

    With few prompts the best of many candidates is best on these prompts only; what is sure to be left on others is
    less than what is seen. A single prompt tells nothing of the noise, and its gain counts whole.
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
