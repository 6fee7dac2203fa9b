"""The checks that frozen configs share, the one form of their errors, and words for kinds and numbers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache, partial
from operator import index
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from omnireuse.errors import ConfigError, OmniReuseError, StateError, WrongTypeError

__all__ = [
    "Count",
    "Factor",
    "Index",
    "Positive",
    "Several",
    "Share",
    "Tolerance",
    "Unlimited",
    "check_fields",
    "check_finite_list",
    "counted",
    "field_error",
    "in_words",
    "is_number",
    "is_whole",
    "kind_error",
    "kind_of",
    "require_size",
]


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


def _check(owner: object, field: str, must: str, fits: Callable[[Any], bool], do: str = "") -> None:
    if not fits(getattr(owner, field)):
        raise field_error(owner, field, must, do=do)


def _number(must: str, fits: Callable[[Any], bool], do: str = "") -> Callable[[object, str], None]:
    return partial(_check, must=must, fits=lambda value: is_number(value) and fits(value), do=do)


def _whole(least: int) -> Callable[[object, str], None]:
    return partial(_check, must=f"be a whole number of at least {least}", fits=lambda value: is_whole(value, least))


# A field's type carries its range; `check_fields` reads it.
Positive = Annotated[float, _number("be a finite number above 0", lambda value: value > 0)]
Factor = Annotated[float, _number("be a finite number of at least 1", lambda value: value >= 1)]
Share = Annotated[float, _number("be at least 0 and below 1", lambda value: 0 <= value < 1)]
_NO_PERCENTAGE = "it is a share, not a percentage: 0.05 is 5 %"
Tolerance = Annotated[Positive, _number("be below 1", lambda value: value < 1, _NO_PERCENTAGE)]
Index = Annotated[int, _whole(0)]
Count = Annotated[int, _whole(1)]
Several = Annotated[int, _whole(2)]
Unlimited = Annotated[int, _whole(-1)]
"""A count, or -1 for no limit."""


def check_fields(config: Any) -> None:
    """Check the fields of a dataclass against their types.

    `bool` and `Literal[…]` are checked as they stand; `Annotated[type, check]` calls `check(config, field)`. None
    passes if the type allows it. Other types are not checked.

    Raises:
        ConfigError: a field is out of its range.
    """
    kind: Any = type(config)
    for name, hint in _hints_of(kind).items():
        value, is_union = getattr(config, name), get_origin(hint) in (Union, UnionType)
        if value is None and is_union and NoneType in get_args(hint):
            continue
        for option in get_args(hint) if is_union else (hint,):
            if option is bool and not isinstance(value, bool):
                raise field_error(config, name, "be True or False")
            if get_origin(option) is Literal and value not in get_args(option):
                or_none = " or None" if is_union else ""
                raise field_error(config, name, f"be one of {', '.join(map(repr, get_args(option)))}{or_none}")
            for check in getattr(option, "__metadata__", ()):
                check(config, name)


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
