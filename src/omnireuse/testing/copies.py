"""What must come back from pickle."""

from __future__ import annotations

import pickle
import sys
from typing import Any, TypeVar

__all__ = ["unpickled"]

T = TypeVar("T")


def unpickled(value: T) -> T:
    """The value after pickle and back; the value itself where its class was defined inside a function or a page, which
    pickle cannot find."""
    cls = type(value)
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    again: T = pickle.loads(pickle.dumps(value)) if found is cls else value
    return again
