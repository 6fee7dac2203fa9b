"""Settings of requests as clients may send them: valid, invalid and absurd."""

from __future__ import annotations

import random

__all__ = ["absurd"]

WORDS = ("speedup", "computed_steps", "quality", "tolerance", "off", "on", "profile", "backend", "", "spéedup", "\0")
NUMBERS: tuple[object, ...] = (0, 1, 2, 3, -1, 0.1, 0.5, 1.5, 1e9, 1e300, 10**400, float("nan"), float("inf"), -0.0)
OTHERS: tuple[object, ...] = (None, True, False, "2", "x" * 5000, [], [2], {}, {"speedup": 2}, b"2", object())


def absurd(rng: random.Random) -> object:
    """A value of the request's setting: valid, invalid or absurd."""
    values = (*NUMBERS, *OTHERS, rng.uniform(1, 8), rng.randint(2, 30))
    if rng.random() < 0.2:
        return rng.choice((*OTHERS, *NUMBERS, *WORDS))
    return {rng.choice(WORDS): rng.choice(values) for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3)))}
