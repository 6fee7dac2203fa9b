"""The progress bars of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["without_bar"]


@contextmanager
def without_bar(pipeline: Any) -> Iterator[None]:
    """Hide the progress bar that diffusers shows of every run; its settings are as before afterwards."""
    name = "_progress_bar_config"
    before = [(each, vars(each).get(name)) for each in _with_bars(pipeline)]
    try:
        for each, settings in before:
            each.set_progress_bar_config(**{**(settings or {}), "disable": True})
        yield
    finally:
        for each, settings in before:
            vars(each).pop(name, None)
            if settings is not None:
                vars(each)[name] = settings


def _with_bars(holder: Any) -> Iterator[Any]:
    """The pipeline, and those blocks of a modular one that show bars, at any depth."""
    if hasattr(holder, "set_progress_bar_config"):
        yield holder
    blocks = getattr(holder, "_blocks", holder)
    for block in dict(getattr(blocks, "sub_blocks", None) or {}).values():
        yield from _with_bars(block)
