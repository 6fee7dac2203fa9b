"""From good schedules to a better one, judged on true runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Candidate", "refine"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A schedule with its forecaster."""

    steps: tuple[int, ...]
    forecaster: str


def refine(
    score: Callable[[Candidate], float],
    starts: Iterable[Candidate],
    *,
    total: int,
    evaluations: int,
    rng: random.Random,
    found: Callable[[Candidate, float], None],
    late: Callable[[], bool] = lambda: False,
) -> None:
    """Try all starts, then move single steps of the best as long as that helps; then of the next best.

    Args:
        score: what a candidate is worth; asked once for each.
        starts: what to begin from, the most promising first.
        total: steps of a run.
        evaluations: most candidates that are scored, the starts among them.
        rng: decides in which order moves are tried.
        found: told every candidate with its score, so that an interrupt loses nothing.
        late: whether time is up; the first candidate is scored in any case.
    """
    scores: dict[Candidate, float] = {}

    def value(candidate: Candidate) -> float | None:
        if candidate not in scores:
            if len(scores) >= evaluations or (scores and late()):
                return None
            scores[candidate] = score(candidate)
            found(candidate, scores[candidate])
        return scores[candidate]

    for start in starts:
        value(start)
    climbed: set[Candidate] = set()
    while len(scores) < evaluations and not late():
        left = [candidate for candidate in scores if candidate not in climbed]
        if not left:
            return
        here = max(left, key=lambda candidate: scores[candidate])
        climbed.add(here)
        moves = list(_moves(here, total))
        rng.shuffle(moves)
        # The first move that helps is taken: scores are noisy, and the best of all moves costs many more of them.
        for move in moves:
            if (reached := value(move)) is None or reached > scores[here]:
                break


def _moves(candidate: Candidate, total: int) -> Iterator[Candidate]:
    inner = candidate.steps[1:-1]
    for step in inner:
        for moved in (step - 2, step - 1, step + 1, step + 2):
            if 0 < moved < total - 1 and moved not in inner:
                steps = tuple(sorted({*candidate.steps} - {step} | {moved}))
                yield Candidate(steps=steps, forecaster=candidate.forecaster)
