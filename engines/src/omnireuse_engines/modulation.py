"""The modulation cache of a server's pipeline, by the server's option."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Literal

from omnireuse import ModulationCache, install_modulation_cache
from omnireuse.base.environment import switch_of
from omnireuse.errors import ConfigError

__all__ = ["MODULATION", "Modulation"]

logger = logging.getLogger("omnireuse")

MODULATION = "omnireuse_modulation"
"""Beginning of the figures, for the counters alone."""


class Modulation:
    """What sees only the timestep is computed once if the server asks for it.

    Args:
        given: the option: true or false; with "cpu" or "disk" the weights leave the device.
        place: where it was written down, for errors.

    Attributes:
        cache: of the pipeline; None if nobody has asked for it.
    """

    def __init__(self, given: object, *, place: str) -> None:
        self.cache: ModulationCache | None = None
        self._place, self._told = place, Counter[str]()
        self._release: Literal["cpu", "disk"] | None = "cpu" if given == "cpu" else "disk" if given == "disk" else None
        switch = switch_of(given)
        if not self._release and switch is None:
            raise ConfigError(f'{place}(modulation={given!r:.60}): modulation must be true, false, "cpu" or "disk"')
        self.is_asked = bool(self._release or switch)

    def install(self, pipeline: object) -> None:
        """Serve this pipeline."""
        if not self.is_asked:
            return
        self.cache = install_modulation_cache(pipeline, release=self._release)
        if self.cache is None:
            raise ConfigError(f"{self._place}(modulation=…): {type(pipeline).__name__} has no linear layers")
        where = "stay on the device" if self._release is None else f"go to {self._release}"
        logger.info("omnireuse computes what sees only the timestep once; its weights %s", where)

    def forget(self) -> None:
        """Compute everything anew."""
        if self.cache is not None:
            self.cache.forget()

    def figures(self) -> dict[str, float]:
        """What was done since this was last asked for, for the server's counters."""
        if self.cache is None:
            return {}
        details = self.cache.details()
        now = Counter({f"{MODULATION}_{action}": details[action] for action in ("computed", "reused")})
        new, self._told = now - self._told, now
        return {name: float(number) for name, number in new.items()}
