"""What `enable` takes opens into a strategy and what works beside it; of that, what tunes the strategy."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

import torch.distributed as dist

from omnireuse.hooks.extension import Extension
from omnireuse.loop.strategy import Strategy
from omnireuse.summary.tuning import Tuning

__all__ = ["Openable", "Opened", "Tunes", "Untuned"]

Opened = tuple[Strategy, str, tuple[Extension, ...]]
"""A strategy, its name in the summary, and what works beside it."""


class Openable(Protocol):
    """What `enable` takes: a strategy, a target, a profile, a named cache."""

    def open(self, pipeline: Any, group: dist.ProcessGroup | None) -> Opened:
        """The strategy for a pipeline, and what goes with it.

        Args:
            group: the ranks that decide together; None if this one decides alone.
        """
        ...


class Tunes(Extension):
    """Tunes the strategy, or says why nothing is tuned.

    Attributes:
        references: full and lean calls of an editing pipeline, which are tuned, too; None for full ones.
    """

    references: Any = None

    @property
    @abstractmethod
    def tuning(self) -> Tuning:
        """The state of tuning."""

    @property
    def profile(self) -> Any:
        """A profile with the plan in use; None before there is one."""
        return None

    def interrupt(self) -> None:
        """End the trial runs that are under way; most make none."""


class Untuned(Tunes):
    """Nothing is tuned, for a reason in words."""

    def __init__(self, reason: str) -> None:
        self._tuning = Tuning(state="off", reason=reason)

    @property
    def tuning(self) -> Tuning:
        return self._tuning
