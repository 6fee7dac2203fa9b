"""Refinement: better beyond the noise, within its budget, and the same under the same seed."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnireuse.diffusion.calibration.candidate import Candidate, Scores
from omnireuse.diffusion.calibration.refine import neighbours, refine, sure_gain

TOTAL = 20
FORECASTERS = ("hold", "blend")


class Scored:
    """Scores by a function, in any order, and what was asked."""

    def __init__(self, score: Callable[[Candidate], Scores], order: random.Random | None = None) -> None:
        self.score, self.order = score, order
        self.asked: list[Candidate] = []

    def scores(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Scores]]:
        mixed = list(candidates)
        if self.order is not None:
            self.order.shuffle(mixed)
        for candidate in mixed:
            self.asked.append(candidate)
            yield candidate, self.score(candidate)


def distance_to(goal: tuple[int, ...]) -> Callable[[Candidate], Scores]:
    def score(candidate: Candidate) -> Scores:
        off = sum(abs(a - b) for a, b in zip(candidate.steps, goal, strict=True))
        return (-float(off + (candidate.forecaster != "blend")),) * 2

    return score


def leaders(scored: Scored, start: tuple[int, ...], evaluations: int, seed: int, margin: float = 1.0) -> list[Scores]:
    return [
        scores
        for _, scores in refine(
            scored,
            [Candidate(steps=start, forecaster="hold")],
            forecasters=FORECASTERS,
            total=TOTAL,
            evaluations=evaluations,
            margin=margin,
            rng=random.Random(seed),
        )
    ]


inner = st.sets(st.integers(1, TOTAL - 2), min_size=4, max_size=4).map(lambda steps: (0, *sorted(steps), TOTAL - 1))


@settings(deadline=None, max_examples=15)
@given(start=inner, goal=inner, seed=st.integers(0, 100))
def test_a_smooth_score_is_climbed_to_its_top(start: tuple[int, ...], goal: tuple[int, ...], seed: int) -> None:
    scored = Scored(distance_to(goal))
    assert leaders(scored, start, evaluations=600, seed=seed)[-1] == (0, 0)
    assert len(set(scored.asked)) == len(scored.asked), "nothing is scored twice"


@settings(deadline=None, max_examples=15)
@given(start=inner, goal=inner, seed=st.integers(0, 100), evaluations=st.integers(1, 30))
def test_the_budget_is_kept_and_the_seed_decides_not_the_order_of_results(
    start: tuple[int, ...], goal: tuple[int, ...], seed: int, evaluations: int
) -> None:
    plain, mixed = Scored(distance_to(goal)), Scored(distance_to(goal), order=random.Random(seed + 1))
    found = leaders(plain, start, evaluations, seed)
    assert len(found) == len(plain.asked) <= evaluations
    assert found == sorted(found), "never worse than before"
    again = leaders(mixed, start, evaluations, seed)
    assert again[-1] == found[-1]
    assert set(mixed.asked) == set(plain.asked)


@given(steps=inner, forecaster=st.sampled_from(FORECASTERS))
def test_neighbours_keep_the_ends_and_the_number_of_steps(steps: tuple[int, ...], forecaster: str) -> None:
    here = Candidate(steps=steps, forecaster=forecaster)
    found = set(neighbours(here, FORECASTERS, TOTAL))
    assert here not in found
    for candidate in found:
        assert (candidate.steps[0], candidate.steps[-1]) == (0, TOTAL - 1)
        assert len(candidate.steps) == len(steps)
        assert candidate.steps == tuple(sorted(set(candidate.steps)))


def test_neighbours_are_shifts_swaps_and_forecasters() -> None:
    here = Candidate(steps=(0, 1, 4, 9), forecaster="hold")
    found = {(each.steps, each.forecaster) for each in neighbours(here, ["b"], total=10)}
    shifted = {(0, 2, 4, 9), (0, 3, 4, 9), (0, 1, 2, 9), (0, 1, 3, 9), (0, 1, 5, 9), (0, 1, 6, 9)}
    swapped = {(0, 3, 4, 9), (0, 5, 8, 9), (0, 1, 6, 9)}
    assert found == {(steps, "hold") for steps in shifted | swapped} | {((0, 1, 4, 9), "b")}


def test_only_fitted_weights_leave_out_the_last_step() -> None:
    here = Candidate(steps=(0, 1, 4, 9), forecaster="fitted")
    found = {each.steps for each in neighbours(here, ["fitted", "hold"], total=10) if each.forecaster == "fitted"}
    assert {(0, 1, 4, 8), (0, 1, 4, 7)} <= found
    early = Candidate(steps=(0, 1, 4, 8), forecaster="fitted")
    assert {each.forecaster for each in neighbours(early, ["fitted", "hold"], total=10)} == {"fitted"}
    assert (0, 1, 4, 9) in {each.steps for each in neighbours(early, [], total=10)}


def test_time_that_is_up_still_scores_one() -> None:
    start = [Candidate(steps=(0, 5, 19), forecaster="hold"), Candidate(steps=(0, 6, 19), forecaster="hold")]
    options = {"forecasters": FORECASTERS, "total": TOTAL, "evaluations": 9, "margin": 1.0, "rng": random.Random(0)}
    assert len(list(refine(Scored(distance_to((0, 9, 19))), start, **options, late=lambda: True))) == 1


def test_a_sure_gain_is_the_mean_less_its_standard_errors() -> None:
    assert sure_gain((3.0, 5.0), (1.0, 1.0), margin=0) == 3
    assert sure_gain((3.0, 5.0), (1.0, 1.0), margin=1) == pytest.approx(3 - math.sqrt(2) / math.sqrt(2))
    assert sure_gain((3.0,), (1.0,), margin=1) == 2


def test_a_margin_keeps_a_search_from_learning_its_prompts_by_heart() -> None:
    goal, prompts = (0, 3, 7, 12, TOTAL - 1), 6

    def worth(candidate: Candidate) -> float:
        return 30 - 0.3 * math.sqrt(sum((a - b) ** 2 for a, b in zip(candidate.steps, goal, strict=True)))

    def overfit(margin: float, world: int) -> float:
        def score(candidate: Candidate) -> Scores:
            own = random.Random(f"{world} {candidate}")
            return tuple(worth(candidate) + own.gauss(0, 3) for _ in range(prompts))

        start = Candidate(steps=goal, forecaster="hold")
        options = {
            "forecasters": FORECASTERS,
            "total": TOTAL,
            "evaluations": 60,
            "margin": margin,
            "rng": random.Random(world),
        }
        *_, (candidate, scores) = refine(Scored(score), [start], **options)
        return statistics.fmean(scores) - worth(candidate)

    without, with_margin = (statistics.fmean(overfit(margin, world) for world in range(20)) for margin in (0.0, 1.0))
    assert without > 1, "the search without margin is fooled, else this test says nothing"
    assert with_margin < 0.7 * without, (with_margin, without)
