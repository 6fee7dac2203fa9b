"""What is compared: a method, and each of its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnireuse.evaluation.compare.harness import Harness

__all__ = ["Kept", "Method", "Setting", "call_text", "unchanged"]

Kept: TypeAlias = "Callable[[], int | None]"
"""Bytes that are kept right now between steps; None where that cannot be known."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One method at one of its settings.

    Attributes:
        settings: for the record.
        call: as a person would write it.
        enable: pipeline -> a context in which the method works; it gives a function to the bytes that are kept. Changes
            of the pipeline need not be undone.
        steps: of the run; None for those of the full run.
        alone: whether it decides for a batch as a whole, so that prompts must come one by one.
    """

    settings: Mapping[str, Any]
    call: str
    enable: Callable[[Any], AbstractContextManager[Kept]]
    steps: int | None = None
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method and its settings.

    Attributes:
        key: the name that ``--only`` takes.
        name: for people.
        family: "ours", "peer" (another library's cache) or "baseline" (no cache).
        grid: its settings for the workload of a harness, whose full run has been measured. It raises
            `UnsupportedModelError` where the method does not serve the workload.
        extra: the optional dependency that it needs; "" for none.
    """

    key: str
    name: str
    family: str
    grid: Callable[[Harness], Iterable[Setting]] = field(repr=False)
    extra: str = ""


@contextmanager
def unchanged(_: Any) -> Iterator[Kept]:
    """Enable nothing and keep nothing."""
    yield lambda: 0


def call_text(function: str, *positional: str, **options: Any) -> str:
    """A call as a person would write it."""
    return f"{function}({', '.join([*positional, *(f'{name}={value!r}' for name, value in options.items())])})"
