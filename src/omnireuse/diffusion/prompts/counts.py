"""The counters of one prompt-embedding cache, and the value that stands for a miss."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from omnireuse.errors import ConfigError

__all__ = ["CACHE_MISS", "CallCounters", "Counts"]

_NAMES = ("hits", "misses", "coalesced", "mutated", "outdated", "unplaced", "outside_hits", "row_hits", "row_misses")


class Counts:
    """Counters that any thread may add to.

    ``hits`` are calls served without an encode of their own, ``misses`` the encodes. ``coalesced`` are calls and rows
    that waited for another call's encode, ``outside_hits`` those of the outer store, ``row_hits`` and ``row_misses``
    prompts of lists; ``mutated`` entries dropped because a consumer changed them in place, ``outdated`` results not
    stored because the encoders changed while they were computed, ``unplaced`` hits that could not be moved to the
    device of their call. ``bypassed_by`` has the calls that no key can be made for, by reason.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = dict.fromkeys(_NAMES, 0)
        self.bypassed_by: Counter[str] = Counter()

    def add(self, name: str, number: int = 1) -> None:
        """Count ``number`` more of ``name``."""
        with self._lock:
            self._numbers[name] += number

    def bypass(self, reason: str) -> None:
        """One more call past the cache."""
        with self._lock:
            self.bypassed_by[reason] += 1

    def assign_bypassed(self, number: int) -> None:
        """Make this the sum of all calls past the cache; a smaller one forgets the reasons known so far."""
        with self._lock:
            missing = _count("bypassed", number) - self.bypassed_by.total()
            if missing < 0:
                self.bypassed_by.clear()
                missing = number
            if missing:
                self.bypassed_by["assigned"] += missing

    def __setitem__(self, name: str, number: int) -> None:
        with self._lock:
            self._numbers[name] = _count(name, number)

    def __getitem__(self, name: str) -> int:
        return self._numbers[name]

    def as_dict(self) -> dict[str, int]:
        """All at one instant; each reason as ``bypassed_<reason>`` beside their sum."""
        with self._lock:
            reasons = {f"bypassed_{reason}": count for reason, count in sorted(self.bypassed_by.items())}
            return self._numbers | {"bypassed": self.bypassed_by.total()} | reasons


class CallCounters:
    """The counters that the specified interface names, to read and to assign."""

    counts: Counts

    @property
    def hits(self) -> int:
        """Calls served without an encode of their own."""
        return self.counts["hits"]

    @hits.setter
    def hits(self, number: int) -> None:
        self.counts["hits"] = number

    @property
    def misses(self) -> int:
        """Encodes."""
        return self.counts["misses"]

    @misses.setter
    def misses(self, number: int) -> None:
        self.counts["misses"] = number

    @property
    def bypassed(self) -> int:
        """Calls that went past the cache, for any reason. An assigned number has the reason "assigned"."""
        return self.bypassed_by.total()

    @bypassed.setter
    def bypassed(self, number: int) -> None:
        self.counts.assign_bypassed(number)

    @property
    def bypassed_by(self) -> Counter[str]:
        """Calls that went past the cache, by reason."""
        return self.counts.bypassed_by


def _count(name: str, number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(f"PromptEmbedCache({name}={number!r}): counter must be a whole number of at least 0")
    return number


class _Miss:
    """The one value that no encode can return."""

    def __repr__(self) -> str:
        return "_CACHE_MISS"

    def __reduce__(self) -> str:
        return "CACHE_MISS"  # pickled by name: there is only one


CACHE_MISS: Final = _Miss()
