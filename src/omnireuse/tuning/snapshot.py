"""A copy of a mutable argument, such as an engine's request, which a call may change."""

from __future__ import annotations

import dataclasses
import io
import pickle
from types import FunctionType, MethodType
from typing import Any

import torch

from omnireuse.errors import StateError

__all__ = ["Snapshot", "is_mutable"]

_SHARED = (torch.Generator, torch.nn.Module, FunctionType, MethodType)
"""What is no part of an argument: it is the same in all copies. The states of generators are set for each call."""


def is_mutable(value: object) -> bool:
    """Whether a call may change this argument: an object with fields of its own."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


class Snapshot:
    """An argument as it is now.

    Args:
        value: the argument.

    Attributes:
        generators: random generators within it.

    Raises:
        StateError: it holds something that cannot be copied.
    """

    def __init__(self, value: Any) -> None:
        self._kept: list[Any] = []
        file = io.BytesIO()
        try:
            _Pickler(file, self._kept).dump(value)
        except Exception as error:
            raise StateError(f"an argument of {type(value).__name__} cannot be copied ({error!s:.200})") from error
        self._text = file.getvalue()
        self.generators = [each for each in self._kept if isinstance(each, torch.Generator)]

    def restored(self) -> Any:
        """A new copy, whose tensors are its own."""
        return _Unpickler(io.BytesIO(self._text), self._kept).load()


class _Pickler(pickle.Pickler):
    """Keeps tensors as copies, and what is shared as it is."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._kept, self._places = kept, dict[int, tuple[int, Any]]()

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, (torch.Tensor, *_SHARED)):
            return None
        if id(obj) not in self._places:
            # The object itself is held, so that no other gets its identity meanwhile.
            self._places[id(obj)] = len(self._kept), obj
            self._kept.append(obj.clone() if isinstance(obj, torch.Tensor) else obj)
        return self._places[id(obj)][0]


class _Unpickler(pickle.Unpickler):
    """Gives each copy tensors of its own."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file)
        self._kept, self._copies = kept, dict[int, Any]()

    def persistent_load(self, pid: int) -> Any:
        kept = self._kept[pid]
        if not isinstance(kept, torch.Tensor):
            return kept
        return self._copies.setdefault(pid, kept.clone())
