"""What environment variables say. Text that is not understood is reported, once, and has no effect."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TypeVar

from omnireuse.base.once import Once

__all__ = ["SWITCHES", "from_environment", "switch_of", "switched_on"]

logger = logging.getLogger("omnireuse")

T = TypeVar("T")
SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
"""What switches say, wherever they stand, in any case of letters."""
_said = Once()


def switch_of(value: object) -> bool | None:
    """Whether a value means on or off: true, 1, "On" and what is like them (`SWITCHES`); None for another value."""
    return SWITCHES.get(str(value).strip().lower()) if isinstance(value, (str, int)) else None


def switched_on(name: str, *, otherwise: bool) -> bool:
    """Whether a variable says 1/true/yes/on, and not 0/false/no/off, in any case of letters."""
    return from_environment(name, SWITCHES.get, otherwise, f"one of {', '.join(SWITCHES)}")


def from_environment(name: str, parse: Callable[[str], T | None], otherwise: T, wanted: str) -> T:
    """The value of a variable.

    Args:
        parse: makes it of the text, in lower case; None if that is not understood.
        otherwise: the value if the variable is not set, or not understood.
        wanted: what the text must be, in words.
    """
    text = os.environ.get(name)
    value = None if text is None else parse(text.strip().lower())
    if text is not None and value is None and _said.is_new((name, text)):
        logger.warning("%s=%r is ignored: it must be %s; using %s", name, text, wanted, otherwise)
    return otherwise if value is None else value
