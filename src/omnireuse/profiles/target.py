"""What a user asks of reuse, as one value: a number of computed steps, or how close the results stay."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omnireuse.base.validation import as_number, kind_error
from omnireuse.errors import ConfigError

__all__ = ["TARGETS", "Target"]

_MUST: dict[str, tuple[str, Callable[[float], bool]]] = {
    "speedup": ("a number of at least 1 (all steps divided by computed steps)", lambda x: x >= 1),
    "computed_steps": ("a whole number of at least 1", lambda x: x >= 1 and x == int(x)),
    "quality": ("a PSNR in dB of at least 15 and at most 100, such as 40", lambda x: 15 <= x <= 100),
    "tolerance": (
        "a relative error of the final latents above 0 and below 1, such as 0.05 for 5 %",
        lambda x: 0 < x < 1,
    ),
}
"""Each target: what it must be, in words and as a test."""
_WORDS = ("{:g}x fewer steps", "{} computed steps", "quality {:g} dB", "tolerance {:g} of the final latents")
TARGETS = tuple(_MUST)
"""Names of the targets, which are the keywords that users give."""


@dataclass(frozen=True)
class Target:
    """One target; false if none is given.

    Attributes:
        name: "speedup", "computed_steps", "quality" (PSNR in dB that nine of ten pictures reach), "tolerance" (relative
            L1 error that nine of ten final latents stay within), or "" if nothing is asked for.
        value: as it was given, if Python's own number.
    """

    name: str = ""
    value: float = 0.0

    @classmethod
    def of(cls, place: str, /, **given: object) -> Target:
        """The target among keywords. None is left out.

        Args:
            place: where they were given, for errors.

        Raises:
            WrongTypeError: a target is no number.
            ConfigError: a target is out of range, or two are given.
        """
        named = {name: _checked(place, name, value) for name, value in given.items() if value is not None}
        if len(named) > 1:
            first, second, *_ = named
            raise ConfigError(f"{place}: give one of {first} and {second}, not both")
        return next((cls(*each) for each in named.items()), cls())

    @property
    def keywords(self) -> dict[str, Any]:
        """As a keyword of `enable`."""
        return {self.name: self.value} if self.name else {}

    @property
    def quality(self) -> float | None:
        """PSNR in dB; None if that is not asked for."""
        return self.value if self.name == "quality" else None

    @property
    def tolerance(self) -> float | None:
        """Relative L1 error; None if that is not asked for."""
        return self.value if self.name == "tolerance" else None

    @property
    def is_of_results(self) -> bool:
        """Whether it says how close results stay, and not how many steps are computed."""
        return self.name in ("quality", "tolerance")

    def __bool__(self) -> bool:
        return bool(self.name)

    def __str__(self) -> str:
        return _WORDS[TARGETS.index(self.name)].format(self.value) if self.name else "default"


def _checked(place: str, name: str, value: object) -> float:
    must, is_in_range = _MUST[name]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise kind_error(place, name, f"be {must}", value, do=as_number(name, value))
    try:
        number = float(value)
    except OverflowError:  # a whole number that no float holds
        number = math.inf
    if not (math.isfinite(number) and is_in_range(number)):
        guess = "; an SSIM is another measure, which is not taken" if name == "quality" and 0 < number <= 1 else ""
        raise ConfigError(f"{place}({name}={value!r:.60}): {name} must be {must}, got {value!r:.60}{guess}")
    if name == "computed_steps":
        return int(number)
    return value if isinstance(value, (int, float)) else number  # saved plans tell 40 from 40.0
