"""Which prompts are held out: some of each part of the list, whatever its order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some

from omnireuse.calibration.calibrate import held_out_last, number_searched


@given(count=some.integers(2, 60), share=some.floats(0.01, 0.99))
def test_each_prompt_is_kept_once_and_every_stretch_gives_one(count: int, share: float) -> None:
    prompts = [str(place) for place in range(count)]
    for_search = number_searched(count, share)
    ordered = held_out_last(prompts, for_search)
    assert sorted(ordered) == sorted(prompts)
    searched, unseen = (list(map(int, part)) for part in (ordered[:for_search], ordered[for_search:]))
    assert searched == sorted(searched)
    gaps = [later - earlier for earlier, later in pairwise(unseen)]
    assert max(gaps, default=0) - min(gaps, default=0) <= 1
    assert unseen[0] < count / len(unseen)


def test_a_list_that_is_sorted_by_kind_is_judged_on_both_kinds() -> None:
    assert held_out_last(["large"] * 6 + ["small"] * 6, 8)[8:] == ["large", "large", "small", "small"]
