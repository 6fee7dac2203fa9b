"""The arguments `tune` and `audit`, and what the environment says of tuning."""

from __future__ import annotations

import logging
import os

from omnireuse.base.validation import is_number, kind_of
from omnireuse.errors import ConfigError, WrongTypeError

__all__ = ["PICTURES", "TURN_OFF", "check_audit", "check_tune", "is_off_by_environment", "why_untuned"]

logger = logging.getLogger("omnireuse")

PICTURES = 3
"""Pictures that are measured at most."""
SWITCH = "OMNIREUSE_TUNE"
"""Environment variable that turns tuning off for a process."""
TURN_OFF = f"off: tune=False, {SWITCH}=0"
"""How a user turns tuning off."""
_OFF, _ON = ("0", "false", "no", "off"), ("1", "true", "yes", "on")
_said: set[str] = set()


def check_tune(tune: object) -> int:
    """How many pictures `tune` lets be measured at most; 0 for none. None is left out, and measures.

    Raises:
        WrongTypeError: neither a bool nor a whole number.
        ConfigError: a number below 1.
    """
    if tune is None or tune is True:
        return PICTURES
    if tune is False:
        return 0
    if not isinstance(tune, int):
        raise WrongTypeError(
            f"enable(tune={tune!r:.60}): tune must be True, False or how many pictures are measured at most, got "
            f"{kind_of(tune)}"
        )
    if tune < 1:
        raise ConfigError(f"enable(tune={tune}): tune must be at least 1 picture, got {tune}; tune=False measures none")
    return tune


def check_audit(audit: object) -> None:
    """Refuse a share that is none.

    Raises:
        WrongTypeError: no number.
        ConfigError: outside of 0…1.
    """
    if not is_number(audit):
        raise WrongTypeError(f"enable(audit={audit!r:.60}): audit must be a share from 0 to 1, got {kind_of(audit)}")
    assert isinstance(audit, (int, float))
    if not 0 <= audit <= 1:
        raise ConfigError(f"enable(audit={audit!r}): audit must be from 0 to 1, got {audit!r}; 0.01 is one call in 100")


def is_off_by_environment() -> bool:
    """Whether the environment turns tuning off. Other text than yes and no is reported, and changes nothing."""
    given = os.environ.get(SWITCH)
    text = (given or "").strip().lower()
    if text in _OFF:
        return True
    if given is not None and text not in _ON and given not in _said:
        _said.add(given)
        logger.warning(
            "%s=%r is not understood, and pipelines are tuned: it must be one of %s",
            SWITCH,
            given,
            ", ".join((*_OFF, *_ON)),
        )
    return False


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
