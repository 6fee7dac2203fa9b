"""What is compared: a method at one of its settings, and the methods by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from omnireuse.errors import UnknownNameError

__all__ = ["Grid", "Method", "Setting", "call_text", "chosen"]

Kept = Callable[[], "int | None"]
"""Bytes that are kept right now between steps; None where that cannot be known."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One method at one of its settings.

    Attributes:
        settings: for the record.
        call: as a person would write it.
        enable: pipeline -> a context in which the method is at work, giving what tells the bytes it keeps.
        steps: of the run; None for those of the full run.
        alone: whether it decides for a batch as a whole, so that prompts must come one by one.
    """

    settings: Mapping[str, Any]
    call: str
    enable: Callable[[Any], AbstractContextManager[Kept]]
    steps: int | None = None
    alone: bool = False


Grid = Callable[[Any, Any], Iterable[Setting]]
"""(subject, what was learnt of its full run) -> the settings to try."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method with its settings.

    Attributes:
        key: what it is chosen by.
        name: what people call it.
        family: "ours", "peer" or "floor".
        grid: its settings for one subject.
    """

    key: str
    name: str
    family: str
    grid: Grid = field(repr=False)


def chosen(methods: Iterable[Method], only: Iterable[str]) -> list[Method]:
    """The methods of these keys or families; all of them where none is given.

    Raises:
        UnknownNameError: a key that no method has.
    """
    methods, only = list(methods), list(only)
    known = {method.key for method in methods} | {method.family for method in methods}
    for key in only:
        if key not in known:
            raise UnknownNameError("method", key, known)
    return [method for method in methods if not only or method.key in only or method.family in only]


def call_text(function: str, *positional: str, **options: Any) -> str:
    """A call as a person would write it."""
    return f"{function}({', '.join([*positional, *(f'{name}={value!r}' for name, value in options.items())])})"
