"""The checks that frozen configs share, and the one form of their errors."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

from omnireuse.errors import ConfigError

__all__ = ["check_at_least", "check_finite_list", "check_positive", "field_error", "is_number", "is_whole"]

_ABSENT = object()


def field_error(owner: object, field: str, must: str, got: object = _ABSENT, *, do: str = "") -> ConfigError:
    """An error of the form *object(field=value): field must …, got …; what to do*."""
    name = owner if isinstance(owner, str) else type(owner).__name__
    value = getattr(owner, field, got) if got is _ABSENT else got
    shown = repr(value) if got is _ABSENT or not isinstance(got, str) else got
    return ConfigError(f"{name}({field}={shown}): {field} must {must}, got {shown}" + (f"; {do}" if do else ""))


def is_number(value: object) -> bool:
    """Whether this is a finite real number, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object, least: int | None = None) -> bool:
    """Whether this is an int, and no bool, of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def check_positive(owner: object, field: str) -> None:
    """Raise unless the field is a finite number above 0."""
    value: Any = getattr(owner, field)
    if not (is_number(value) and value > 0):
        raise field_error(owner, field, "be a finite number above 0")


def check_at_least(owner: object, field: str, least: int) -> None:
    """Raise unless the field is a whole number of at least `least`."""
    if not is_whole(getattr(owner, field), least):
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
    if isinstance(values, (str, bytes)) or not all(map(is_number, found)):
        raise field_error(owner, field, must)
    if length is not None and len(found) != length:
        raise field_error(owner, field, must, f"{len(found)} of them")
    return tuple(map(float, found))
