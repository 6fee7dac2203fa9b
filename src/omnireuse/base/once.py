"""What is said once."""

from __future__ import annotations

import logging
from collections.abc import Hashable

__all__ = ["Once"]

logger = logging.getLogger("omnireuse")


class Once:
    """Tells what is new, and logs each line once. Threads may share it; a copy goes on by itself."""

    def __init__(self, *known: Hashable) -> None:
        self._known: dict[Hashable, object] = dict.fromkeys(known)

    def is_new(self, thing: Hashable) -> bool:
        """True the first time that it is asked for this thing."""
        mine = object()
        return self._known.setdefault(thing, mine) is mine  # one look, which no other thread comes between

    def say(self, text: str, level: int = logging.WARNING) -> None:
        """Log a line unless it was logged before."""
        if self.is_new(text):
            logger.log(level, "%s", text)
