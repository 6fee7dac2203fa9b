"""Frozen dataclasses as a JSON file that a person can read: written whole or not at all, read back checked."""

from __future__ import annotations

import json
import math
import os
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from omnireuse.errors import ConfigError, StateError

__all__ = ["check_writable", "decoded", "encoded", "write_whole"]

_LIST = re.compile(r"\[\s+([^\[\]{}\"]*?)\s+\]")


def encoded(value: Any, **beside: Any) -> str:
    """A dataclass and some entries before its fields as JSON; a list of numbers takes one line."""
    text = json.dumps({**beside, **asdict(value)}, indent=1, ensure_ascii=False, allow_nan=False)
    return _LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def decoded(kind: Any, value: Any, where: str = "it") -> Any:
    """What `encoded` made JSON of, every value of the type that the dataclass declares. Fields with a default may be
    missing: files of an older version lack them.

    Raises:
        ValueError: a field that is missing, unknown or of another type; it says where.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (some,) = (each for each in inner if each is not type(None))
        return None if value is None else decoded(some, value, where)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        own = _expect(value, dict, where)
        known = {each.name for each in fields(kind)}
        for name in own.keys() - known:
            raise ValueError(f"{where} has an unknown field {name!r}")
        for name in {each.name for each in fields(kind) if each.default is MISSING} - own.keys():
            raise ValueError(f"{where} lacks the field {name!r}")
        return kind(**{name: decoded(hints[name], each, name) for name, each in own.items()})  # type: ignore[operator]  # a class
    if origin is tuple:
        own = _expect(value, list, where)
        kinds = [inner[0]] * len(own) if inner[-1] is ... else inner
        if len(own) != len(kinds):
            raise ValueError(f"{where} must have {len(kinds)} entries, got {len(own)}")
        return tuple(decoded(each, entry, where) for each, entry in zip(kinds, own, strict=True))
    if origin is Mapping:
        own = _expect(value, dict, where)
        return {inner[0](key): decoded(inner[1], entry, f"{where}[{key}]") for key, entry in own.items()}
    if kind is float:
        number = float(_expect(value, (int, float), where))
        if not math.isfinite(number):
            raise ValueError(f"{where} must be finite, got {number}")
        return number
    return _expect(value, kind, where)


def _expect(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} is of another type: {value!r:.60}")
    return value


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        StateError: it cannot be written; what was there before is as it was.
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                # Some file systems say only now that the disk is full.
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(
            f"{target}: cannot be written ({error.strerror}); "
            f"{'the file that was there is untouched' if target.is_file() else 'nothing was left there'}"
        ) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Find out before long work whether its result can be written; leaves nothing but the folder.

    Raises:
        ConfigError: a folder, or a place where no file can be made.
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.touch()
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror}); give another path") from error
