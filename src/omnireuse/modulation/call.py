"""One call of a denoiser, and which one this thread is in."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from omnireuse.modulation.table import Key, Table
from omnireuse.modulation.values import Known, settings

__all__ = ["NOW", "Call"]


class Call:
    """One call of a denoiser.

    Attributes:
        number: of the call, from 1.
        known: values of small tensors.
        is_ahead: whether this is a later step, for which rows are made already.
        is_return: whether a value that was read is known from an earlier round of steps.
        keys: of all rows that were asked for, in this order.
        hits: tables that had a row.
        filled: keys of new rows.
        loaded: of these, the rows that were outside.
    """

    def __init__(
        self,
        denoiser: nn.Module,
        number: int,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        is_ahead: bool = False,
    ) -> None:
        self.denoiser, self.number, self.args, self.kwargs = denoiser, number, args, kwargs or {}
        self.is_ahead, self.is_return, self.known = is_ahead, False, Known()
        self.keys: list[Key] = []
        self.hits: list[Table] = []
        self.filled: list[Key] = []
        self.loaded: set[Key] = set()
        self._settings: dict[str, tuple[Any, ...]] = {}

    def settings(self, device_type: str) -> tuple[Any, ...]:
        """Those of torch during this call."""
        if device_type not in self._settings:
            self._settings[device_type] = settings(device_type)
        return self._settings[device_type]


class _Now(threading.local):
    call: Call | None = None


NOW = _Now()
"""`call` is the innermost one that this thread is in."""
