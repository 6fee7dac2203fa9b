"""One name for the three schedules."""

from __future__ import annotations

from typing import Any

from omnireuse.policies.every_nth import EveryNth
from omnireuse.policies.spread import Spread
from omnireuse.policies.steps import Steps

__all__ = ["FixedSchedule"]


def FixedSchedule(**options: Any) -> Steps | EveryNth | Spread:  # it makes an object of a class
    """`Steps` where `steps` are given, `Spread` for `num_computed` or `speedup`, and `EveryNth` otherwise.

    Raises:
        ConfigError, TypeError: as these classes; each takes its own options alone.
    """
    if "steps" in options:
        return Steps(**options)
    return Spread(**options) if {"num_computed", "speedup"} & {*options} else EveryNth(**options)
