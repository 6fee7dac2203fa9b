"""The layout of a denoiser call, and what has changed in it since another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Layout"]


class Layout(NamedTuple):
    """What must be the same at the steps that a forecast is made from.

    Attributes:
        arguments: name, shape, dtype and device of each tensor argument, in the order of their names.
        scales: of adapters; None where there are none.
        streams: the same of the tensors that enter the blocks.
        denoiser: its number.
        controls: scales of the ControlNets whose outputs the call may be given, by name.
    """

    arguments: tuple[tuple[str, tuple[int, ...], Any, Any], ...]
    scales: tuple[Any, ...] | None = None
    streams: tuple[tuple[tuple[int, ...], Any, Any], ...] = ()
    denoiser: int = 0
    controls: tuple[tuple[str, Any], ...] = ()

    def changes_to(self, other: Layout) -> str:
        """What differs in `other`, in words."""
        return ", ".join(self._changes_to(other)) or "nothing"

    def _changes_to(self, other: Layout) -> Iterator[str]:
        if self.denoiser != other.denoiser:
            yield "the denoiser"
        before = {name: what for name, *what in self.arguments}
        after = {name: what for name, *what in other.arguments}
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if old is None or new is None:
                yield f"{name} is given at some steps only"
            elif old != new:
                shown = next((f"from {a} to {b}" for a, b in zip(old, new, strict=True) if a != b), "")
                yield f"{name} {shown}"
        if self.scales != other.scales:
            yield "the scales of adapters"
        if self.controls != other.controls:
            yield "the scales of ControlNets"
        if self.streams != other.streams and self.arguments == other.arguments:
            yield "the shapes of what enters the blocks"
