"""Refinement: better and never worse than its starts, within its budget, and the same under the same seed."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from omnireuse.search.refine import Candidate, refine

TOTAL = 20


def found_with(
    start: tuple[int, ...], goal: tuple[int, ...], evaluations: int, seed: int
) -> list[tuple[Candidate, float]]:
    seen: list[tuple[Candidate, float]] = []
    refine(
        lambda candidate: -float(sum(abs(a - b) for a, b in zip(candidate.steps, goal, strict=True))),
        [Candidate(steps=start, forecaster="hold")],
        total=TOTAL,
        evaluations=evaluations,
        rng=random.Random(seed),
        found=lambda candidate, score: seen.append((candidate, score)),
    )
    return seen


inner = st.sets(st.integers(1, TOTAL - 2), min_size=4, max_size=4).map(lambda steps: (0, *sorted(steps), TOTAL - 1))


@settings(deadline=None, max_examples=25)
@given(start=inner, goal=inner, seed=st.integers(0, 100))
def test_a_smooth_score_is_climbed_to_its_top(start: tuple[int, ...], goal: tuple[int, ...], seed: int) -> None:
    seen = found_with(start, goal, evaluations=500, seed=seed)
    assert max(score for _, score in seen) == 0
    assert len({candidate for candidate, _ in seen}) == len(seen), "nothing is scored twice"


@settings(deadline=None, max_examples=25)
@given(start=inner, goal=inner, seed=st.integers(0, 100), evaluations=st.integers(1, 30))
def test_the_budget_is_kept_and_the_seed_decides(
    start: tuple[int, ...], goal: tuple[int, ...], seed: int, evaluations: int
) -> None:
    seen = found_with(start, goal, evaluations, seed)
    assert len(seen) <= evaluations
    assert seen == found_with(start, goal, evaluations, seed)
    for candidate, _ in seen:
        assert candidate.steps[0] == 0
        assert candidate.steps[-1] == TOTAL - 1
        assert len(set(candidate.steps)) == len(start)
