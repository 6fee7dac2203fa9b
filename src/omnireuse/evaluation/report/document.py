"""Frozen dataclasses as strict JSON and back, with every field's type held and every mistake named by its place."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from omnireuse.errors import ConfigError

__all__ = ["read_document", "write_document"]

T = TypeVar("T")


def write_document(record: Any, path: Path, head: Mapping[str, Any]) -> None:
    """Write a dataclass as JSON behind the fields of `head`, whole or not at all.

    A float that JSON has no word for becomes the text "inf" or "nan".
    """
    document = {**head, **_plain(dataclasses.asdict(record))}
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_document(kind: type[T], path: Path, head: Mapping[str, Any], *, what: str, writer: str) -> T:
    """Read what `write_document` wrote.

    Args:
        kind: the dataclass, of fields that are dataclasses, tuples, dicts, unions with None and plain values.
        head: what the file must begin with.
        what: the file in a word, for messages.
        writer: the command that writes such a file.

    Raises:
        ConfigError: no file, no JSON, another head, or a field of a wrong type; the message says where.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror or error}; `{writer}` writes such a file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{what} {path}: not JSON ({error}); a file that was cut off reads so, `{writer}` writes it anew"
        ) from error
    for name, wanted in head.items():
        found = document.pop(name, None) if isinstance(document, dict) else None
        if found != wanted:
            raise ConfigError(f"{what} {path}: {name} must be {wanted!r}, got {found!r}; `{writer}` writes such a file")
    try:
        return typing.cast(T, _typed(kind, document, what))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _typed(kind: Any, value: Any, at: str) -> Any:
    """`value` of parsed JSON as the annotated type `kind`; ConfigError with its place `at` where it is not one."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if type(value) in arguments or (value is None and types.NoneType in arguments):
            return value
        return _typed(next(argument for argument in arguments if argument is not types.NoneType), value, at)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints, names = typing.get_type_hints(kind), {field.name for field in dataclasses.fields(kind)}
        if value.keys() != names:
            raise ConfigError(
                f"{at}: fields must be {', '.join(sorted(names))}; differ in {sorted(value.keys() ^ names)}"
            )
        return kind(**{name: _typed(hints[name], item, f"{at}.{name}") for name, item in value.items()})
    if origin is tuple and isinstance(value, list):
        return tuple(_typed(arguments[0], item, f"{at}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _typed(arguments[1], item, f"{at}.{key}") for key, item in value.items()}
    if kind is float and (type(value) in (int, float) or value in ("inf", "-inf", "nan")):
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise ConfigError(f"{at} must be a {getattr(kind, '__name__', kind)}, got {value!r}")
