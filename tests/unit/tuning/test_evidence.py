"""The evidence that takes a plan."""

from __future__ import annotations

import pytest

from omnireuse.tuning.budget import Budget
from omnireuse.tuning.search import Candidate, clearly_closest


def tried(closeness: list[float], errors: list[float]) -> Candidate:
    return Candidate(steps=(0, 2, 3), total=4, closeness=closeness, errors=errors, numbers=list(range(len(errors))))


UNTUNED = tried([40.0, 41.0, 42.0], [0.1, 0.1, 0.1])


def test_the_closest_plan_is_taken() -> None:
    close, closer = (tried([number] * 3, [0.05] * 3) for number in (46.0, 47.0))
    assert clearly_closest([close, closer], UNTUNED) is closer


@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(tried([42.0, 43.0, 44.0], [0.05] * 3), id="closer by too little"),
        pytest.param(tried([60.0, 60.0, 43.0], [0.01, 0.01, 0.11]), id="farther in one picture"),
    ],
)
def test_other_plans_are_not(trial: Candidate) -> None:
    assert clearly_closest([trial], UNTUNED) is None


def test_the_second_is_taken_where_the_first_is_farther_in_one_picture() -> None:
    uneven, even = tried([60.0, 60.0, 43.0], [0.01, 0.01, 0.11]), tried([46.0] * 3, [0.05] * 3)
    assert clearly_closest([uneven, even], UNTUNED) is even


def test_without_reuse_untuned_every_picture_must_be_close() -> None:
    near, far = tried([40.0] * 3, [0.04, 0.05, 0.03]), tried([50.0] * 3, [0.01, 0.06, 0.01])
    assert clearly_closest([near], None) is near
    assert clearly_closest([far], None) is None
    assert clearly_closest([], None) is None


def test_a_plan_is_compared_in_the_pictures_that_it_has_followed() -> None:
    late = Candidate(steps=(0, 2, 3), total=4, closeness=[50.0], errors=[0.15], numbers=[3])
    untuned = Candidate(
        steps=(0, 2, 3), total=4, closeness=[60.0, 60.0, 40.0], errors=[0.1, 0.1, 0.2], numbers=[0, 1, 3]
    )
    assert clearly_closest([late], untuned) is late


def test_runs_without_an_untuned_default_say_what_a_plan_is_compared_with() -> None:
    short, long = (Budget(steps=(0, 2), reuses=reuses, noises=(1.0, 0.7, 0.4, 0.1)) for reuses in (False, True))
    assert "2 steps are computed if a plan leaves at most 5% error" in short.words
    assert short.none_found.startswith("every step is computed")
    assert "no plan leaves at most 5% error" in short.none_found
    assert long.words == "2 steps are computed"
    assert long.none_found == "the untuned default stays; no plan was clearly closer"
