"""Who does the runs of a search: this process, unless others are hired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from omnireuse.diffusion.calibration.judge import Judge

__all__ = ["InProcess", "Workers"]


class Workers(Protocol):
    """One judge or several alike, to whom calls are dealt out."""

    def run(self, method: str, calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """Call that method of a judge with each of the arguments.

        Yields:
            Place of the call among `calls` and its result, as they come. Who stops listening gives up what is left.
        """

    def share(self, value: Any) -> Any:
        """Something to be given in calls in place of `value`, which may be large and is needed again and again."""

    def close(self) -> None:
        """Let the workers go."""


class InProcess:
    """The calls one after the other, here."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def run(self, method: str, calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """As `Workers.run`, in the given order."""
        for place, arguments in enumerate(calls):
            yield place, getattr(self._judge, method)(*arguments)

    def share(self, value: Any) -> Any:
        """The value itself."""
        return value

    def close(self) -> None:
        """Nobody was hired."""
