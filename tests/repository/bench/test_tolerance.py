"""What a tolerance and a quality leave, measured caption by caption, and what is made of it."""

from __future__ import annotations

from bench import tolerance


def test_halving_finds_the_smallest_number_that_keeps_a_tolerance() -> None:
    asked: list[int] = []

    def share(count: int) -> float:
        asked.append(count)
        return 0.0 if count < 11 else 1.0

    assert tolerance.smallest_kept(share) == 11
    assert len(asked) <= 5
