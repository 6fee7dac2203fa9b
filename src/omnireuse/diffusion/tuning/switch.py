"""Whether a pipeline is tuned: the argument `tune`, and the environment."""

from __future__ import annotations

import logging
import os

from omnireuse.diffusion.reuse.validation import kind_of
from omnireuse.errors import ConfigError, WrongTypeError

__all__ = ["PICTURES", "SWITCH", "check_tune", "is_off_by_environment"]

logger = logging.getLogger("omnireuse")

PICTURES = 3
"""Pictures that are measured at most."""
SWITCH = "OMNIREUSE_TUNE"
"""Environment variable that turns tuning off for a process."""
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
