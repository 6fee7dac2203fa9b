"""A tier: a place outside this process that keeps values, and that may be dead, slow, full or corrupt.

Whatever goes wrong there is a miss, counted by its reason, and never an error of the request. After a few failures in
a row the circuit opens: for a while the tier is not asked at all.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from omnireuse.base.validation import Count, Positive, check_value
from omnireuse.errors import WrongTypeError
from omnireuse.stores.codec import CorruptValueError, decode, encode

__all__ = ["CircuitBreaker", "Tier", "TieredStore"]

logger = logging.getLogger("omnireuse")


class CircuitBreaker:
    """Closed until ``max_failures`` failures in a row, then open for ``pause_s`` seconds, then one trial call.

    Args:
        max_failures: failures in a row that open it, at least 1.
        pause_s: seconds it stays open, above 0.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, max_failures: int = 3, pause_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_value("CircuitBreaker", "max_failures", max_failures, Count)
        check_value("CircuitBreaker", "pause_s", pause_s, Positive)
        self._max_failures, self._pause_s, self._clock = max_failures, pause_s, clock
        self._lock = threading.Lock()
        self._num_failures = 0
        self._opened_at: float | None = None

    def allows(self) -> bool:
        """Tell whether to try now; after the pause, one call is let through and others wait for its outcome."""
        with self._lock:
            if self._opened_at is None:
                return True
            if self._clock() - self._opened_at < self._pause_s:
                return False
            self._opened_at = self._clock()
            return True

    def report(self, *, ok: bool) -> bool:
        """Take the outcome of a call; True if this failure opened the circuit."""
        with self._lock:
            if ok:
                self._num_failures, self._opened_at = 0, None
                return False
            self._num_failures += 1
            if self._num_failures < self._max_failures:
                return False
            was_closed, self._opened_at = self._opened_at is None, self._clock()
            return was_closed


class Tier(ABC):
    """Values by text key in an outside place. No failure there is an error here.

    A subclass implements ``_read``, ``_write`` and ``_delete`` and raises its own errors.

    Args:
        namespace: separates values of one model and state from those of others; part of every key.
        breaker: the circuit; None for the default one.
    """

    name = "tier"

    def __init__(self, *, namespace: str, breaker: CircuitBreaker | None = None) -> None:
        self.namespace = namespace
        self.breaker = breaker or CircuitBreaker()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def lookup(self, key: str, default: Any = None, *, namespace: str | None = None) -> Any:
        """Return the value of ``key`` with its tensors on the CPU, or ``default``."""
        full = self._full(key, namespace)
        data = self._guard("read", lambda: self._read(full))
        if data is None:
            self._count("misses")
            return default
        try:
            value = decode(full, data)
        except CorruptValueError as error:
            self._count("misses", "corrupt")
            logger.warning("%s: %s; it is dropped", self.name, error)
            self._guard("delete", lambda: self._delete(full))
            return default
        self._count("hits")
        return value

    def put(self, key: str, value: object, *, namespace: str | None = None) -> bool:
        """Store ``value``; False, counted, if the tier does not take it."""
        full = self._full(key, namespace)
        try:
            data = encode(full, value)
        except WrongTypeError as error:
            self._count("unstorable")
            logger.warning("%s: %s", self.name, error)
            return False
        kept = self._guard("write", lambda: self._write(full, data))
        self._count("writes" if kept else "not_written")
        return bool(kept)

    def discard(self, key: str, *, namespace: str | None = None) -> None:
        """Drop ``key`` if it is there."""
        self._guard("delete", lambda: self._delete(self._full(key, namespace)))

    def close(self) -> None:  # noqa: B027 - not every tier has connections
        """Close connections."""

    def _full(self, key: str, namespace: str | None) -> str:
        return f"{self.namespace if namespace is None else f'{self.namespace}:{namespace}'}:{key}"

    def _guard(self, what: str, call: Callable[[], Any]) -> Any:
        if not self.breaker.allows():
            self._count("held_back")
            return None
        try:
            result = call()
        except self.errors() as error:
            self._count(f"failed_{what}")
            if self.breaker.report(ok=False):
                logger.warning("%s: not asked for a while after repeated failures, last: %s", self.name, error)
            return None
        self.breaker.report(ok=True)
        return result

    def _count(self, *names: str) -> None:
        with self._lock:
            self.counts.update(names)

    def errors(self) -> tuple[type[Exception], ...]:
        """Return the errors that count as failures of the tier."""
        return (OSError,)

    @abstractmethod
    def _read(self, full: str) -> bytes | None: ...

    @abstractmethod
    def _write(self, full: str, data: bytes) -> bool: ...

    @abstractmethod
    def _delete(self, full: str) -> None: ...


_ABSENT = object()


class TieredStore:
    """Several tiers as one, nearest first, as disk before Redis."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.tiers = tuple(tiers)

    def lookup(self, key: str, default: object = None, *, namespace: str | None = None) -> Any:
        """Return the value from the nearest tier that has it, copied to those nearer; ``default`` if none has."""
        for i, tier in enumerate(self.tiers):
            value = tier.lookup(key, _ABSENT, namespace=namespace)
            if value is not _ABSENT:
                for nearer in self.tiers[:i]:
                    nearer.put(key, value, namespace=namespace)
                return value
        return default

    def put(self, key: str, value: object, *, namespace: str | None = None) -> bool:
        """Store in every tier; True if any kept it."""
        kept = [tier.put(key, value, namespace=namespace) for tier in self.tiers]  # every tier, not up to the first
        return any(kept)

    def discard(self, key: str, *, namespace: str | None = None) -> None:
        """Drop from every tier."""
        for tier in self.tiers:
            tier.discard(key, namespace=namespace)

    def counts(self) -> Counter[str]:
        """Return the events of every tier so far, as ``disk_hits``."""
        # Copied at once: other threads count meanwhile.
        return Counter({f"{tier.name}_{name}": n for tier in self.tiers for name, n in dict(tier.counts).items()})

    def close(self) -> None:
        """Close every tier."""
        for tier in self.tiers:
            tier.close()
