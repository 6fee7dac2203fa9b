"""One call of a denoiser, and which one this thread is in."""

from __future__ import annotations

import threading
from typing import Any

from torch import nn

from omnireuse.modulation.table import Key
from omnireuse.modulation.values import Known, settings

__all__ = ["NOW", "Call"]


class Call:
    """One call of a denoiser.

    Attributes:
        number: of the call, from 1.
        inputs: positional and keyword arguments; None for a later step, whose rows are made ahead of its call.
        known: values of small tensors.
        is_return: whether a value that was read is known from an earlier round of steps.
        hits: keys of rows that existed, in the order of the calls.
        filled: keys of new rows.
        loaded: those of them that came from the outer store.
    """

    def __init__(self, denoiser: nn.Module, number: int, inputs: tuple[Any, Any] | None = None) -> None:
        self.denoiser, self.number, self.inputs = denoiser, number, inputs
        self.known, self.is_return = Known(), False
        self.hits: list[Key] = []
        self.filled: list[Key] = []
        self.loaded: set[Key] = set()
        self._settings: dict[str, tuple[Any, ...]] = {}

    def settings(self, device_type: str) -> tuple[Any, ...]:
        """The settings of torch during this call."""
        if device_type not in self._settings:
            self._settings[device_type] = settings(device_type)
        return self._settings[device_type]


class _Now(threading.local):
    call: Call | None = None


NOW = _Now()
"""`call` is the innermost one that this thread is in."""
