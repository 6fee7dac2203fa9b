"""A published method as a strategy of this library: its own schedule and forecast on our runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import omnireuse
from omnireuse.evaluation.compare.methods.base import Kept, Setting, call_text

if TYPE_CHECKING:
    from omnireuse.evaluation.compare.harness import Harness

__all__ = ["budgets", "strategy_setting"]

SHARES = (0.72, 0.5, 0.36, 0.25)


@contextmanager
def _enabled(pipeline: Any, make: Callable[[], Mapping[str, Any]]) -> Iterator[Kept]:
    with omnireuse.enable(pipeline, **make()) as handle:
        yield lambda: handle.summary().kept_bytes


def strategy_setting(name: str, make: Callable[[], Mapping[str, Any]], **settings: Any) -> Setting:
    """A setting of a method that is written from its paper.

    Args:
        name: of the method, for the record.
        make: gives the arguments of `omnireuse.enable`; called when the setting is enabled, so that it may calibrate.
        settings: of the method, for the record.
    """
    return Setting(settings=settings, call=call_text(name, **settings), enable=partial(_enabled, make=make))


def budgets(harness: Harness) -> list[int]:
    """Numbers of computed steps for methods that take one: `SHARES` of the steps, at least three."""
    return sorted({max(round(harness.workload.steps * share), 3) for share in SHARES}, reverse=True)
