"""Traces: which items were asked for, in order, read from a file that a person could have written.

CSV with a header, or JSON lines (a file whose first line begins with "{"), one access a line:

    key      what is asked for: hash or name of the content
    size     encoder embeddings of its output, ≥ 1; the same on every line of a key
    cost     optional: seconds that encoding takes, > 0; on every line or on none
    request  optional: neighbouring lines that name the same request hold their items together until its last line
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omnireuse.errors import ConfigError

__all__ = ["Access", "read_trace", "requests_of", "write_trace"]

Text = Annotated[str, Meta(min_length=1)]


class Access(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One access of a trace; the attributes are the columns of the file."""

    key: Text
    size: Annotated[int, Meta(ge=1)]
    cost: Annotated[float, Meta(gt=0, lt=1e9)] | None = None
    request: Text | None = None


def requests_of(trace: Iterable[Access]) -> Iterator[list[Access]]:
    """Split a trace into its requests, in order; an access that names none is a request of its own."""
    numbered = itertools.groupby(enumerate(trace), key=lambda pair: pair[1].request or pair[0])
    return ([access for _, access in pairs] for _, pairs in numbered)


def write_trace(trace: Iterable[Access], path: Path) -> None:
    """Write a trace: JSON lines if the name ends in ``.jsonl``, else CSV with the columns that it has."""
    rows: list[dict[str, Any]] = [msgspec.to_builtins(access) for access in trace]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        else:
            columns = [name for name in Access.__struct_fields__ if any(name in row for row in rows)]
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def read_trace(path: Path) -> list[Access]:
    """Read a trace.

    Raises:
        ConfigError: no such file, nothing in it, or a line that cannot be; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"trace {path}: must be a readable file, got {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"trace {path}: must be UTF-8, got {error.reason} at byte {error.start}") from error
    trace: list[Access] = []
    first: dict[str, tuple[int, int]] = {}  # the size and line of each key
    for line, row in _json_lines(text) if text.lstrip().startswith("{") else _csv_lines(path, text):
        try:  # a number may be written as text, as CSV has no other
            if isinstance(row, str):
                access = msgspec.json.decode(row, type=Access, strict=False)
            else:
                access = msgspec.convert(row, Access, strict=False)
        except ValueError as error:
            raise _bad(path, line, str(error)) from error
        size, before = first.setdefault(access.key, (access.size, line))
        if size != access.size:
            raise _bad(path, line, f"size must be {size} as on line {before} for {access.key!r}, got {access.size}")
        if trace and (access.cost is None) != (trace[0].cost is None):
            raise _bad(path, line, f"cost must be given on every line or on none, got {access.cost}")
        trace.append(access)
    if not trace:
        raise ConfigError(f"trace {path}: must hold at least one access, got none")
    return trace


def _bad(path: Path, line: int, why: str) -> ConfigError:
    columns = ", ".join(Access.__struct_fields__)
    return ConfigError(f"trace {path}, line {line}: {why}; the columns are {columns}")


def _json_lines(text: str) -> Iterator[tuple[int, str]]:
    return ((line, content) for line, content in enumerate(text.split("\n"), 1) if content.strip())


def _csv_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        if len(set(names)) < len(names):
            raise _bad(path, 1, f"each column must be named once in the header, got {names}")
        for row in reader:
            if None in row:
                raise _bad(path, reader.line_num, f"must have {len(names)} cells as the header has, got more")
            yield reader.line_num, {name: cell for name, cell in zip(names, row.values(), strict=True) if cell}
    except csv.Error as error:
        raise _bad(path, reader.reader.line_num, f"must be CSV, got {error}") from error
