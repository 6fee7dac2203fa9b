"""The checks that frozen configs share, and the one shape of their errors."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

from omnireuse.errors import ConfigError

__all__ = ["check_at_least", "check_finite_list", "check_positive", "field_error"]

_ABSENT = object()


def field_error(owner: object, field: str, must: str, got: object = _ABSENT, *, do: str = "") -> ConfigError:
    """An error in the one shape: *object(field=value): field must …, got …; what to do*."""
    name = owner if isinstance(owner, str) else type(owner).__name__
    value = getattr(owner, field, got) if got is _ABSENT else got
    shown = repr(value) if got is _ABSENT or not isinstance(got, str) else got
    return ConfigError(f"{name}({field}={shown}): {field} must {must}, got {shown}" + (f"; {do}" if do else ""))


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_positive(owner: object, field: str) -> None:
    """Raise unless the field is a finite number above 0."""
    value: Any = getattr(owner, field)
    if not (_is_number(value) and math.isfinite(value) and value > 0):
        raise field_error(owner, field, "be a finite number above 0")


def check_at_least(owner: object, field: str, least: int) -> None:
    """Raise unless the field is a whole number of at least `least`."""
    value: Any = getattr(owner, field)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise field_error(owner, field, f"be a whole number of at least {least}")


def check_finite_list(
    owner: object, field: str, values: Iterable[float], *, length: int | None = None
) -> tuple[float, ...]:
    """The values as a tuple of floats; raises unless they are finite numbers (and exactly `length` many)."""
    must = f"be {'exactly ' + str(length) if length else 'a list of'} finite numbers"
    try:
        found = tuple(values)
    except TypeError:
        raise field_error(owner, field, must) from None
    if isinstance(values, (str, bytes)) or not all(_is_number(v) and math.isfinite(v) for v in found):
        raise field_error(owner, field, must)
    if length is not None and len(found) != length:
        raise field_error(owner, field, must, f"{len(found)} of them")
    return tuple(float(v) for v in found)
