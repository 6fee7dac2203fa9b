"""Who calls: a diffusers pipeline, or a loop of one's own."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["calling_pipeline"]

# By name, because importing them is slow.
_PIPELINES = {"DiffusionPipeline", "ModularPipeline"}


def calling_pipeline() -> Any | None:
    """The diffusers pipeline whose call this thread is in, the innermost one; None outside of any.

    Pipelines share schedulers and denoisers (`from_pipe`), which cannot tell who calls them, and any class may be the
    caller: so the stack is read. Only pipelines that run without being intercepted themselves need this.
    """
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__call__" and code.co_argcount:
            caller = frame.f_locals.get(code.co_varnames[0])
            if not _PIPELINES.isdisjoint(cls.__name__ for cls in type(caller).__mro__):
                return caller
        frame = frame.f_back  # type: ignore[assignment]  # the outermost has none
    return None
