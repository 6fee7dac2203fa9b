"""The arguments `tune` and `audit`, and what the environment says of tuning."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from omnireuse.base.environment import switched_on
from omnireuse.base.validation import Count, Range, check_fields, check_value, finite, is_whole

__all__ = ["PICTURES", "TURN_OFF", "TuneOptions", "check_tune", "is_off_by_environment", "why_untuned"]

logger = logging.getLogger("omnireuse")

PICTURES = 3
"""Pictures that are measured at most."""
SWITCH = "OMNIREUSE_TUNE"
"""Environment variable that turns tuning off for a process."""
TURN_OFF = f"off: tune=False, {SWITCH}=0"
"""How a user turns tuning off."""
MostPictures = Annotated[int, Range("be True, False, TuneOptions, or at least 1 picture", partial(is_whole, least=1))]
_ONE_IN_100 = "0.01 is one call in 100"
Audited = Annotated[float, finite("be a share from 0 to 1", lambda x: 0 <= x <= 1, _ONE_IN_100)]


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """How a pipeline is tuned, as ``enable(pipe, tune=TuneOptions(heartbeat=False))``.

    Attributes:
        pictures: how many are measured at most, ≥ 1.
        heartbeat: whether the callback of a call is called while the trial runs after its picture go on, with the
            arguments of the picture's last step. Its result is ignored, and an error or `_interrupt` ends them.

    Raises:
        ConfigError: a field is out of its range.
    """

    pictures: Count = PICTURES
    heartbeat: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


def check_tune(tune: bool | int | TuneOptions | None) -> TuneOptions | None:
    """How `tune` lets pictures be measured; None if it does not. None, left out, does.

    Raises:
        ConfigError: it is neither a bool nor a number of at least 1 nor options.
    """
    if tune is None or tune is True:
        return TuneOptions()
    if tune is False or isinstance(tune, TuneOptions):
        return tune or None
    check_value("enable", "tune", tune, MostPictures)
    return TuneOptions(pictures=tune)


def is_off_by_environment() -> bool:
    """Whether the environment turns tuning off. Other text than yes and no is reported, and changes nothing."""
    return not switched_on(SWITCH, otherwise=True)


def why_untuned(tune: object, region: str) -> str:
    """Why pictures of a strategy in this region are not measured; empty if they are."""
    if tune is False:
        return "tune=False"
    if is_off_by_environment():
        return f"{SWITCH} turns it off"
    if region == "step":
        return ""
    logger.info("tuning is off: region %r is not tuned", region)
    return f"region {region!r} is not tuned"
