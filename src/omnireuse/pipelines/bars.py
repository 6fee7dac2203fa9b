"""The progress bars of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["showing_bars", "with_bar", "without_bar"]


@contextmanager
def with_bar(pipeline: object, **settings: object) -> Iterator[None]:
    """Show the progress bar that diffusers shows of every run with these settings of tqdm beside the user's; all are as
    before afterwards. A bar that the user has disabled stays so."""
    name = "_progress_bar_config"
    before = [(each, vars(each).get(name)) for each in showing_bars(pipeline)]
    try:
        for each, own in before:
            each.set_progress_bar_config(**{**(own or {}), **settings})
        yield
    finally:
        for each, own in before:
            vars(each).pop(name, None)
            if own is not None:
                vars(each)[name] = own


def without_bar(pipeline: object) -> Any:
    """Hide the progress bar that diffusers shows of every run; its settings are as before afterwards."""
    return with_bar(pipeline, disable=True)


def showing_bars(holder: object) -> Iterator[Any]:
    """The pipeline, and those blocks of a modular one that show bars, at any depth."""
    if hasattr(holder, "set_progress_bar_config"):
        yield holder
    blocks = getattr(holder, "_blocks", holder)
    for block in dict(getattr(blocks, "sub_blocks", None) or {}).values():
        yield from showing_bars(block)
