"""The counters of one prompt-embedding cache."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from omnireuse.errors import ConfigError

__all__ = ["Counts", "checked"]

_NAMES = ("hits", "misses", "coalesced", "mutated", "outdated", "unplaced", "outside_hits", "row_hits", "row_misses")
_BYPASSED = "bypassed_"


def _counter(name: str, doc: str) -> Any:
    def assign(counts: Counts, number: int) -> None:
        counts._numbers[name] = checked(name, number, 0)

    return property(lambda counts: counts._numbers[name], assign, doc=doc)


class Counts:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._numbers = dict.fromkeys(_NAMES, 0)

    hits = _counter("hits", "Calls served without an encode of their own; may be assigned.")
    misses = _counter("misses", "Encodes; may be assigned.")

    @property
    def bypassed(self) -> int:
        """Calls past the cache. May be assigned: a surplus has the reason "assigned", less forgets the reasons."""
        return sum(self.bypassed_by.values())

    @bypassed.setter
    def bypassed(self, number: int) -> None:
        reasons = self.bypassed_by
        if checked("bypassed", number, 0) < reasons.total():
            with self._counting:
                for reason in reasons:
                    del self._numbers[_BYPASSED + reason]
            reasons.clear()
        self.bypass("assigned", number - reasons.total())

    @property
    def bypassed_by(self) -> Counter[str]:
        """Calls past the cache, by reason, see :class:`~omnireuse.diffusion.prompts.keys.UnkeyableError`."""
        with self._counting:
            return +Counter({k[len(_BYPASSED) :]: n for k, n in self._numbers.items() if k.startswith(_BYPASSED)})

    def add(self, name: str, number: int = 1) -> None:
        """Count ``number`` more of ``name``."""
        with self._counting:
            self._numbers[name] = self._numbers.get(name, 0) + number

    def bypass(self, reason: str, number: int = 1) -> None:
        """Count calls past the cache."""
        self.add(_BYPASSED + reason, number)

    def counters(self) -> dict[str, int]:
        """All of them, with ``bypassed``, the sum of the ``bypassed_<reason>``."""
        bypassed = self.bypassed
        with self._counting:
            return {**self._numbers, "bypassed": bypassed}


def checked(name: str, number: Any, least: int) -> int:
    """``number`` if it is an integer of at least ``least``; ConfigError otherwise."""
    if isinstance(number, int) and not isinstance(number, bool) and number >= least:
        return number
    hint = "; pass enabled=False to store nothing" if name == "max_size" else ""
    raise ConfigError(
        f"PromptEmbedCache({name}={number!r}): field must be an integer of at least {least}, got {number!r}{hint}"
    )
