"""Bring weights back before a whole denoiser is compiled, because a compiled graph does not call the tables."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from omnireuse.modulation.call import NOW

__all__ = ["unwatch", "watch"]

_watched: weakref.WeakKeyDictionary[nn.Module, Callable[[], Any]] = weakref.WeakKeyDictionary()


def watch(denoiser: nn.Module, come_back: Callable[[], None]) -> None:
    """Call a bound method before torch compiles a call of the whole denoiser. Idempotent."""
    from torch._dynamo.callback import callback_handler

    _watched[denoiser] = weakref.WeakMethod(come_back)
    if _compiles not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_compiles)


def unwatch(denoiser: nn.Module | None) -> None:
    """Do so no longer. Idempotent."""
    from torch._dynamo.callback import callback_handler

    if denoiser is not None:  # one that is freed is no key any more
        _watched.pop(denoiser, None)
    if not _watched and _compiles in callback_handler.start_callbacks:
        callback_handler.remove_start_callback(_compiles)


def _compiles(*_: object) -> None:
    """Bring the weights back if a whole denoiser is being compiled, and not a part of it or code of this package."""
    frame = sys._getframe().f_back
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("omnireuse.modulation."):
        caller = frame.f_locals.get("self")
        module = caller._modules.get("_orig_mod", caller) if isinstance(caller, nn.Module) else None
        if module is not None and module in _watched:
            is_whole = NOW.call is None or NOW.call.denoiser is not module
            if is_whole and (come_back := _watched[module]()) is not None:
                come_back()
            return
        frame = frame.f_back
