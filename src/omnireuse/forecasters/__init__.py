"""The forecasters by name. Each gives the value of a step that is not computed."""

from __future__ import annotations

from omnireuse.base.registry import Registry
from omnireuse.base.validation import look_up
from omnireuse.forecasters.base import Forecaster, Memory, combine
from omnireuse.forecasters.blend import Blend
from omnireuse.forecasters.fitted import Fitted
from omnireuse.forecasters.hold import Hold
from omnireuse.forecasters.polynomial import Polynomial

__all__ = [
    "FORECASTERS",
    "Blend",
    "Fitted",
    "Forecaster",
    "Hold",
    "Memory",
    "Polynomial",
    "combine",
    "forecaster_named",
]

FORECASTERS: Registry[type[Forecaster]] = Registry(
    "omnireuse.forecasters",
    {
        "blend": Blend,
        "hold": Hold,
        "polynomial": Polynomial,
        "taylorseer": Polynomial,
    },
)
"""The package's own, and those of the entry points `omnireuse.forecasters`."""


def forecaster_named(name: str) -> Forecaster:
    """The forecaster of that name with its defaults; an UnknownNameError names the nearest."""
    return look_up("forecaster", name, FORECASTERS)()
