"""The checks that frozen configs share, the one form of their errors, and words for kinds and numbers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache, partial
from operator import index
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from omnireuse.errors import ConfigError, OmniReuseError, StateError, UnknownNameError, WrongTypeError

__all__ = [
    "Count",
    "Factor",
    "Index",
    "Order",
    "Positive",
    "Range",
    "Several",
    "Share",
    "Tolerance",
    "Unlimited",
    "check_fields",
    "check_finite_list",
    "check_value",
    "counted",
    "field_error",
    "finite",
    "in_words",
    "is_number",
    "is_whole",
    "kind_error",
    "kind_of",
    "look_up",
    "require_size",
    "whole",
]


T = TypeVar("T")
_ABSENT = object()


def field_error(owner: object, field: str, must: str, got: object = _ABSENT, *, do: str = "") -> ConfigError:
    """An error of the form *object(field=value): field must …, got …; what to do*."""
    name = owner if isinstance(owner, str) else type(owner).__name__
    value = getattr(owner, field, got) if got is _ABSENT else got
    shown = repr(value) if got is _ABSENT or not isinstance(got, str) else got
    return ConfigError.of_fields(name, {field: shown}, must, shown, do)


def kind_error(owner: object, field: str, must: str, got: object, *, do: str = "") -> WrongTypeError:
    """The same for a value of the wrong kind."""
    name = owner if isinstance(owner, str) else type(owner).__name__
    return WrongTypeError(f"{name}({field}={got!r:.60}): {field} must {must}, got {kind_of(got)}{do and f'; {do}'}")


def is_number(value: object) -> bool:
    """Whether this is a finite real number, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object, least: int | None = None) -> bool:
    """Whether this is an int, and no bool, of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def kind_of(value: object) -> str:
    """A value in words, for errors: "the class Blend", "the text '2x'", "an int"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str):
        return f"the text {value!r:.60}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class Range(NamedTuple):
    """What the value of a type must be: in words, as a check, and what to do about another one."""

    must: str
    has: Callable[[Any], bool]
    do: str = ""


def finite(must: str, has: Callable[[Any], bool], do: str = "") -> Range:
    """The range of a finite number."""
    return Range(must, lambda value: is_number(value) and has(value), do)


def whole(least: int) -> Range:
    """The range of a whole number."""
    return Range(f"be a whole number of at least {least}", partial(is_whole, least=least))


# A field's type carries its range; `check_fields` and `check_value` read it.
Positive = Annotated[float, finite("be a finite number above 0", lambda x: x > 0)]
Factor = Annotated[float, finite("be a finite number of at least 1", lambda x: x >= 1)]
Share = Annotated[float, finite("be at least 0 and below 1", lambda x: 0 <= x < 1)]
_NO_PERCENTAGE = "it is a share, not a percentage: 0.05 is 5 %"
Tolerance = Annotated[Positive, finite("be below 1", lambda x: x < 1, _NO_PERCENTAGE)]
Index = Annotated[int, whole(0)]
Count = Annotated[int, whole(1)]
Several = Annotated[int, whole(2)]
Order = Annotated[int, Range("be 1, 2 or 3", lambda x: is_whole(x, 1) and x <= 3, "0 is the forecaster 'hold'")]
Unlimited = Annotated[int, whole(-1)]
"""A count, or -1 for no limit."""


def check_fields(config: object) -> None:
    """Check the fields of a dataclass against their types, as `check_value` does.

    A function in `Annotated[type, function]` is called with the dataclass and the name of the field.
    """
    kind: Any = type(config)
    for name, hint in _hints_of(kind).items():
        check_value(config, name, getattr(config, name), hint)


def check_value(owner: object, field: str, value: object, kind: object) -> None:
    """Check a value against a type or a `Range`.

    Types that are checked are bool, `Literal[…]`, and `Annotated[type, …]` with a `Range` or a `Literal`. None passes
    if the type allows it.

    Raises:
        UnknownNameError: it is none of the names.
        ConfigError: it is out of its range.
    """
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and NoneType in options:
        return
    for option in options:
        if option is bool and not isinstance(value, bool):
            must = "be True, False or None" if NoneType in options else "be True or False"
            raise field_error(owner, field, must, repr(value))
        for check in (option, *getattr(option, "__metadata__", ())):
            if get_origin(check) is Literal and value not in get_args(check):
                raise UnknownNameError(field, value, get_args(check))
            if isinstance(check, Range) and not check.has(value):
                raise field_error(owner, field, check.must, repr(value), do=check.do)
            if isinstance(check, FunctionType):
                check(owner, field)


def look_up(kind: str, name: str, table: Mapping[str, T], *, hint: str = "") -> T:
    """The value of a name; else an UnknownNameError, with the nearest name."""
    if name not in table:
        raise UnknownNameError(kind, name, table, hint=hint)
    return table[name]


@cache
def _hints_of(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


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


def counted(number: int, noun: str) -> str:
    """The number with its noun, which takes an s unless it is one: "1 run", "2 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def in_words(error: BaseException) -> str:
    """What an error says; with its class unless it is one of omnireuse's own, which are whole sentences."""
    return str(error) if isinstance(error, OmniReuseError) else f"{type(error).__name__}: {error}"


def in_own_words(error: Exception) -> OmniReuseError:
    """The same as one of omnireuse's own errors, which other processes can read."""
    return error if isinstance(error, OmniReuseError) else StateError(in_words(error))


def as_number(name: str, value: object) -> str:
    """The number that a text means, for an error's advice."""
    if not isinstance(value, str):
        return ""
    text = value.strip().lower()
    try:
        number = float(text.removesuffix("x").removesuffix("db").removesuffix("%").strip())
    except ValueError:
        return ""
    number /= 100 if text.endswith("%") else 1
    return f"write {name}={number:g}" if math.isfinite(number) else ""


def require_size(what: str, value: object, *, least: int = 0) -> int:
    """Return `value` as an int if it is an integer ≥ `least`; numpy's integers are."""
    try:
        size = index(value)  # type: ignore[arg-type]  # tells whether it is an integer
    except TypeError:
        raise WrongTypeError(f"{what} must be an integer, got {value!r} of type {type(value).__name__}") from None
    if size < least:
        raise ConfigError(f"{what} must be ≥ {least}, got {value}")
    return size
