"""Typed records in JSON files: read strictly, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from omnireuse import messages
from omnireuse.errors import ConfigError, StateError

__all__ = ["AnyFloat", "Record", "as_text", "check_writable", "read_record", "record_of", "sealed", "write_text"]

SEAL = "checksum"
"""Name of the entry with the checksum of all others."""
_NUMBERS = re.compile(r"\[\n\s*([^\[\]{}\"]*?)\n\s*\]")

if TYPE_CHECKING:
    AnyFloat = float
else:

    class AnyFloat(float):
        """Type of a field that may be infinite or NaN. JSON has no such numbers, so the file holds "inf" or "nan".
        A field of type `float` must be finite."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of records in a file, and of the records inside of them.

    Declare ``class Name(Record, frozen=True, kw_only=True)`` with fields as in a dataclass. `__post_init__` may check
    them, and `msgspec.structs.replace` copies with changes. A file may lack fields that have a default.
    """


R = TypeVar("R", bound=Record)


def read_record(
    kind: type[R],
    path: str | os.PathLike[str],
    head: Mapping[str, Any],
    *,
    what: str,
    remedy: str,
    upgrade: Callable[[dict[str, Any]], None] | None = None,
) -> R:
    """Read a file that holds the text of `as_text`; the arguments are those of `record_of`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    return record_of(kind, data, head, place=str(path), what=what, remedy=remedy, upgrade=upgrade)


def record_of(
    kind: type[R],
    data: bytes | str,
    head: Mapping[str, Any],
    *,
    place: str,
    what: str,
    remedy: str,
    upgrade: Callable[[dict[str, Any]], None] | None = None,
    is_sealed: bool = False,
) -> R:
    """The record that `as_text` has written.

    Args:
        place: where it comes from, for errors.
        upgrade: changes the content of an older format, head included, into that of the present one.
        is_sealed: whether it must have a checksum. If there is one it must be right.
    """
    try:
        document = msgspec.json.decode(data)
        if not isinstance(document, dict):
            raise ValueError(f"must be an object, got {document!r:.60}")
        if (is_sealed or SEAL in document) and document.get(SEAL) != sealed(document)[SEAL]:
            raise ConfigError(f"{place}: the {SEAL} is not that of the content; {remedy}")
        document.pop(SEAL, None)
        if upgrade is not None:
            upgrade(document)
        for name, expected in head.items():
            if (found := document.pop(name, None)) != expected:
                raise ConfigError(f"{place}: {name} of a {what} must be {expected!r}, got {found!r:.60}; {remedy}")
        return msgspec.convert(document, kind, str_keys=True, dec_hook=_any_float)
    except ConfigError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ConfigError(f"{place}: not a whole {what} ({error}); {remedy}") from error


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the checksum of its content, the SHA-256 of its JSON with sorted keys."""
    content = {name: value for name, value in document.items() if name != SEAL}
    return {SEAL: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(), **content}


def as_text(record: Record, head: Mapping[str, Any], *, seals: bool = False) -> str:
    """The record as JSON, after the entries of `head`, with a checksum if asked for. A list of numbers takes one
    line."""
    fields = _without_infinities(msgspec.to_builtins(record, str_keys=True, enc_hook=lambda value: float(value)))
    msgspec.convert(fields, type(record), str_keys=True, dec_hook=_any_float)
    document = sealed({**head, **fields}) if seals else {**head, **fields}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def _any_float(kind: type, value: Any) -> Any:
    if kind is AnyFloat and (type(value) in (int, float) or value in ("inf", "-inf", "nan")):
        return AnyFloat(value)
    raise ValueError(f"Expected a number, 'inf', '-inf' or 'nan', got {value!r:.60}")


def _without_infinities(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file whole or not at all, and make its folder."""
    target = Path(path)
    beside = _beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                # Some file systems say only now that the disk is full.
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        left = "the file that was there is untouched" if target.is_file() else "nothing was left there"
        raise StateError(messages.NOT_WRITTEN, path=target, why=error.strerror, left=left) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check before long work that its result can be written. Makes the folder, and nothing else."""
    target = Path(path)
    beside = _beside(target)
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


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}")
