"""What an eviction policy is told, and what it is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

__all__ = ["EvictionPolicy"]


class EvictionPolicy(ABC):
    """Order entries for eviction. It never decides whether an entry may go, only which goes first.

    Keys are opaque; sizes are in the cache's unit (encoder embeddings). Deterministic: the same calls give the same
    victims.
    """

    @abstractmethod
    def stored(self, key: Hashable, size: int, cost: float) -> None:
        """Take note of a new entry and of what encoding it costs; it is in use."""

    @abstractmethod
    def used(self, key: Hashable) -> None:
        """Take note that an entry got another reference."""

    @abstractmethod
    def idle(self, key: Hashable) -> None:
        """Take note that the last reference to an entry is gone."""

    @abstractmethod
    def victim(self, may_go: Callable[[Hashable], bool]) -> Hashable:
        """Name the entry to evict, among those that may go; the caller makes sure there is one. It stays for now."""

    @abstractmethod
    def removed(self, key: Hashable, *, evicted: bool) -> None:
        """Take note that an entry is gone; `evicted` if for room, and so worth remembering."""

    def cost_known(self, key: Hashable, cost: float) -> None:  # noqa: B027 - most policies do not care
        """Take note of what encoding an entry really cost."""
