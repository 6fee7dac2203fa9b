"""The arguments `tune` and `audit`, and what the environment says of tuning."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from omnireuse.base.environment import switched_on
from omnireuse.base.validation import field_error, is_number, kind_error

__all__ = ["PICTURES", "TURN_OFF", "TuneOptions", "check_audit", "check_tune", "is_off_by_environment", "why_untuned"]

logger = logging.getLogger("omnireuse")

PICTURES = 3
"""Pictures that are measured at most."""
SWITCH = "OMNIREUSE_TUNE"
"""Environment variable that turns tuning off for a process."""
TURN_OFF = f"off: tune=False, {SWITCH}=0"
"""How a user turns tuning off."""


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """How a pipeline is tuned, as ``enable(pipe, tune=TuneOptions(heartbeat=False))``.

    Attributes:
        pictures: how many are measured at most, ≥ 1.
        heartbeat: whether the callback of a call is called while the trial runs after its picture go on, with the
            arguments of the picture's last step. Its result is ignored, and an error or `_interrupt` ends them.

    Raises:
        WrongTypeError: a field is of the wrong kind.
        ConfigError: a number below 1.
    """

    pictures: int = PICTURES
    heartbeat: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.pictures, int) or isinstance(self.pictures, bool):
            raise kind_error("TuneOptions", "pictures", "be how many pictures are measured at most", self.pictures)
        if self.pictures < 1:
            raise field_error("TuneOptions", "pictures", "be at least 1", self.pictures, do="tune=False measures none")
        if not isinstance(self.heartbeat, bool):
            raise kind_error("TuneOptions", "heartbeat", "be True or False", self.heartbeat)


def check_tune(tune: object) -> TuneOptions | None:
    """How `tune` lets pictures be measured; None if it does not. None, left out, does.

    Raises:
        WrongTypeError: neither a bool nor a whole number nor options.
        ConfigError: a number below 1.
    """
    if tune is None or tune is True:
        return TuneOptions()
    if tune is False or isinstance(tune, TuneOptions):
        return tune or None
    if not isinstance(tune, int):
        wanted = "be True, False, how many pictures are measured at most, or TuneOptions"
        raise kind_error("enable", "tune", wanted, tune)
    if tune < 1:
        raise field_error("enable", "tune", "be at least 1 picture", tune, do="tune=False measures none")
    return TuneOptions(pictures=tune)


def check_audit(audit: object) -> None:
    """Refuse a share that is none.

    Raises:
        WrongTypeError: no number.
        ConfigError: outside of 0…1.
    """
    if not is_number(audit):
        raise kind_error("enable", "audit", "be a share from 0 to 1", audit)
    assert isinstance(audit, (int, float))
    if not 0 <= audit <= 1:
        raise field_error("enable", "audit", "be from 0 to 1", audit, do="0.01 is one call in 100")


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
