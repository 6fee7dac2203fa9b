"""What a tolerance and a quality leave, measured caption by caption, and what is made of it."""

from __future__ import annotations

from typing import Any

from bench import tolerance


def test_halving_finds_the_smallest_number_that_keeps_a_tolerance() -> None:
    asked: list[int] = []

    class Rows:
        player = tolerance.Latents

        def get(self, method: str, count: int) -> dict[str, Any]:
            asked.append(count)
            return {"errors": [0.1 if count < 11 else 0.01]}

    assert tolerance.smallest_kept(Rows(), 0.05) == 11
    assert len(asked) <= 5
