"""The counters of one prompt-embedding cache, and the value that stands for a miss."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

__all__ = ["CACHE_MISS", "Counts"]

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

    def __getitem__(self, name: str) -> int:
        return self._numbers[name]

    def as_dict(self) -> dict[str, int]:
        """All at one instant; each reason as ``bypassed_<reason>`` beside their sum."""
        with self._lock:
            reasons = {f"bypassed_{reason}": count for reason, count in sorted(self.bypassed_by.items())}
            return self._numbers | {"bypassed": self.bypassed_by.total()} | reasons


class _Miss:
    """The one value that no encode can return."""

    def __repr__(self) -> str:
        return "_CACHE_MISS"

    def __reduce__(self) -> str:
        return "CACHE_MISS"  # pickled by name: there is only one


CACHE_MISS: Final = _Miss()
