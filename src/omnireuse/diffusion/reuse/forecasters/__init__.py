"""The forecasters by name. Each gives what is used instead of a value that was not computed."""

from __future__ import annotations

from omnireuse.diffusion.reuse.forecasters.base import Forecaster, Memory
from omnireuse.diffusion.reuse.forecasters.best_order import BestOrder
from omnireuse.diffusion.reuse.forecasters.blend import Blend
from omnireuse.diffusion.reuse.forecasters.combination import Combination, combine
from omnireuse.diffusion.reuse.forecasters.fitted import Fitted
from omnireuse.diffusion.reuse.forecasters.hold import Hold
from omnireuse.diffusion.reuse.forecasters.polynomial import Polynomial
from omnireuse.errors import UnknownNameError
from omnireuse.registry import Registry

__all__ = [
    "FORECASTERS",
    "BestOrder",
    "Blend",
    "Combination",
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
        "best_order": BestOrder,
        "blend": Blend,
        "hold": Hold,
        "polynomial": Polynomial,
        "taylorseer": Polynomial,
    },
)
"""The package's own, and those of the entry points `omnireuse.forecasters`."""


def forecaster_named(name: str) -> Forecaster:
    """The forecaster of that name with its defaults; an UnknownNameError names the nearest."""
    if name not in FORECASTERS:
        raise UnknownNameError("forecaster", name, FORECASTERS)
    return FORECASTERS[name]()
