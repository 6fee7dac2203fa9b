"""Check the sizes and counts that users give."""

from __future__ import annotations

from operator import index

from omnireuse.errors import ConfigError, WrongTypeError

__all__ = ["require_size"]


def require_size(what: str, value: object, *, least: int = 0) -> int:
    """Return `value` as an int if it is an integer ≥ `least`; numpy's integers are."""
    try:
        size = index(value)  # type: ignore[arg-type]  # tells whether it is an integer
    except TypeError:
        raise WrongTypeError(f"{what} must be an integer, got {value!r} of type {type(value).__name__}") from None
    if size < least:
        raise ConfigError(f"{what} must be ≥ {least}, got {value}")
    return size
