"""The counters of one prompt-embedding cache."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from omnireuse.errors import ConfigError

__all__ = ["Counts", "checked"]

_NAMES = ("hits", "misses", "coalesced", "mutated", "outdated", "unplaced", "outside_hits", "row_hits", "row_misses")


def _counter(name: str, doc: str) -> Any:
    def assign(counts: Counts, number: int) -> None:
        counts._numbers[name] = checked(name, number, 0)

    return property(lambda counts: counts._numbers[name], assign, doc=doc)


class Counts:
    """Counters that any thread may add to. `hits`, `misses` and `bypassed` may be assigned.

    Attributes:
        bypassed_by: calls past the cache, by reason, see :class:`~omnireuse.prompts.keys.UnkeyableError`.
    """

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._numbers = dict.fromkeys(_NAMES, 0)
        self.bypassed_by: Counter[str] = Counter()

    hits = _counter("hits", "Calls served without an encode of their own.")
    misses = _counter("misses", "Encodes.")

    @property
    def bypassed(self) -> int:
        """Calls past the cache. An assigned surplus has the reason "assigned"; less forgets the reasons."""
        return self.bypassed_by.total()

    @bypassed.setter
    def bypassed(self, number: int) -> None:
        if checked("bypassed", number, 0) < self.bypassed:
            self.bypassed_by.clear()
        self.bypass("assigned", number - self.bypassed)

    def add(self, name: str, number: int = 1) -> None:
        """Count ``number`` more of ``name``."""
        with self._counting:
            self._numbers[name] += number

    def bypass(self, reason: str, number: int = 1) -> None:
        """Count calls past the cache."""
        if number:
            with self._counting:
                self.bypassed_by[reason] += number

    def counters(self) -> dict[str, int]:
        """All of them, with ``bypassed``, the sum of the ``bypassed_<reason>``."""
        with self._counting:
            reasons = {f"bypassed_{reason}": number for reason, number in self.bypassed_by.items()}
            return {**self._numbers, "bypassed": self.bypassed} | reasons


def checked(name: str, number: Any, least: int) -> int:
    """``number`` if it is an integer of at least ``least``; ConfigError otherwise."""
    if isinstance(number, int) and not isinstance(number, bool) and number >= least:
        return number
    hint = "; pass enabled=False to store nothing" if name == "max_size" else ""
    raise ConfigError(
        f"PromptEmbedCache({name}={number!r}): field must be an integer of at least {least}, got {number!r}{hint}"
    )
