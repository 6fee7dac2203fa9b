"""The interface of an eviction policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

__all__ = ["EvictionPolicy"]


class EvictionPolicy(ABC):
    """Order entries for eviction. It does not decide whether an entry may go, only which one goes first.

    Keys are opaque; sizes are in the cache's unit (encoder embeddings). Deterministic: the same calls give the same
    victims.
    """

    @abstractmethod
    def stored(self, key: Hashable, size: int, cost: float) -> None:
        """Add an entry, which is in use; `cost` is that of encoding it."""

    @abstractmethod
    def used(self, key: Hashable) -> None:
        """An entry got another reference."""

    @abstractmethod
    def idle(self, key: Hashable) -> None:
        """An entry lost its last reference."""

    @abstractmethod
    def victim(self, may_go: Callable[[Hashable], bool]) -> Hashable:
        """Return the entry to evict, among those that may go; there is at least one. It stays for now."""

    @abstractmethod
    def removed(self, key: Hashable, *, evicted: bool) -> None:
        """An entry is gone; `evicted` if for room, and so worth remembering."""

    def cost_known(self, key: Hashable, cost: float) -> None:  # noqa: B027 - most policies ignore it
        """The true cost of encoding an entry is known."""
