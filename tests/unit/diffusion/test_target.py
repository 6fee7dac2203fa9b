"""What is asked of reuse, as one value."""

from __future__ import annotations

from typing import Any

import pytest

from omnireuse.errors import ConfigError
from omnireuse.profiles.target import TARGETS, Target


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "default"),
        ({"speedup": 2.5}, "2.5x fewer steps"),
        ({"computed_steps": 14.0}, "14 computed steps"),
        ({"quality": 40}, "quality 40 dB"),
        ({"tolerance": 0.05}, "tolerance 0.05 of the final latents"),
    ],
)
def test_it_is_what_was_given(given: dict[str, Any], words: str) -> None:
    target = Target.of("here", **{**dict.fromkeys(TARGETS), **given})
    assert (str(target), target.keywords, bool(target)) == (words, given, bool(given))
    assert target.quality == given.get("quality")
    assert target.tolerance == given.get("tolerance")
    assert target.is_of_results == bool({"quality", "tolerance"} & given.keys())


def test_it_is_one_and_its_place_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^here: give one of quality and speedup, not both$"):
        Target.of("here", quality=40, speedup=2)
    with pytest.raises(ConfigError, match=r"^here\(speedup=0\.5\): speedup must be a number of at least 1"):
        Target.of("here", speedup=0.5)
