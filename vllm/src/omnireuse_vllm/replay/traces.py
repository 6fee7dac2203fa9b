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
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from omnireuse.errors import ConfigError, UnknownNameError

__all__ = ["Access", "read_trace", "requests_of", "write_trace"]

COLUMNS = ("key", "size", "cost", "request")


@dataclass(frozen=True, kw_only=True)
class Access:
    """One access of a trace; the attributes are the columns of the file."""

    key: str
    size: int
    cost: float | None = None
    request: str | None = None


def requests_of(trace: Iterable[Access]) -> Iterator[list[Access]]:
    """Split a trace into its requests, in order; an access that names none is a request of its own."""
    numbered = itertools.groupby(enumerate(trace), key=lambda pair: pair[1].request or pair[0])
    return ([access for _, access in pairs] for _, pairs in numbered)


def write_trace(trace: Iterable[Access], path: Path) -> None:
    """Write a trace: JSON lines if the name ends in ``.jsonl``, else CSV with the columns that it has."""
    rows = [{name: value for name, value in asdict(access).items() if value is not None} for access in trace]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        else:
            columns = [name for name in COLUMNS if any(name in row for row in rows)]
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def read_trace(path: Path) -> list[Access]:
    """Read a trace.

    Raises:
        ConfigError: no such file, nothing in it, or a line that cannot be; the message names line and column.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"trace {path}: must be a readable file, got {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"trace {path}: must be UTF-8, got {error.reason} at byte {error.start}") from error
    parse = _json_lines if text.lstrip().startswith("{") else _csv_lines
    trace: list[Access] = []
    sizes: dict[str, tuple[int, int]] = {}
    for line, row in parse(path, text):
        access = _access(path, line, row)
        size, first = sizes.setdefault(access.key, (access.size, line))
        if size != access.size:
            raise _bad(path, line, "size", f"must be {size} as on line {first} for {access.key!r}", access.size)
        if trace and (access.cost is None) != (trace[0].cost is None):
            raise _bad(path, line, "cost", "must be given on every line or on none", access.cost)
        trace.append(access)
    if not trace:
        raise ConfigError(f"trace {path}: must hold at least one access, got none; columns: {', '.join(COLUMNS)}")
    return trace


def _bad(path: Path, line: int, column: str, must: str, got: object) -> ConfigError:
    return ConfigError(f"trace {path}, line {line}, column {column}: {must}, got {got!r}")


def _csv_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            if not cells:
                continue
            if header is None:
                header = [name.strip() for name in cells]
                _check_columns(path, reader.line_num, header)
            elif len(cells) != len(header):
                column = header[len(cells)] if len(cells) < len(header) else str(len(header) + 1)
                must = f"must have {len(header)} cells as the header has"
                raise _bad(path, reader.line_num, column, must, len(cells))
            else:
                yield reader.line_num, {name: cell for name, cell in zip(header, cells, strict=True) if cell != ""}
    except csv.Error as error:
        raise ConfigError(f"trace {path}, line {reader.line_num}: must be CSV, got {error}") from error


def _check_columns(path: Path, line: int, header: list[str]) -> None:
    for number, name in enumerate(header, 1):
        if name not in COLUMNS:
            where = f"trace {path}, line {line}, column {number}"
            raise UnknownNameError("trace column", name, COLUMNS, hint=f"{where}: a CSV trace begins with its header")
        if header.index(name) != number - 1:
            raise _bad(path, line, name, "must be named once in the header", header)
    for name in ("key", "size"):
        if name not in header:
            raise _bad(path, line, name, "must be in the header", header)


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except ValueError as error:
            column = getattr(error, "colno", 1)
            raise ConfigError(f"trace {path}, line {line}, column {column}: must be JSON, got {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"trace {path}, line {line}, column 1: must be a JSON object, got {content.strip()[:60]}")
        for name in row:
            if name not in COLUMNS:
                raise UnknownNameError("trace column", name, COLUMNS, hint=f"trace {path}, line {line}")
        yield line, {name: value for name, value in row.items() if value is not None}


def _access(path: Path, line: int, row: dict[str, object]) -> Access:
    """Check one row; a number may be written as text, which is all that CSV has."""
    for name in ("key", "request"):
        value = row.get(name, "" if name == "key" else None)
        if value is not None and (not isinstance(value, str) or not value):
            raise _bad(path, line, name, "must be a text that is not empty", value)
    size, cost = _number(row.get("size"), int), _number(row.get("cost"), float)
    if not isinstance(size, int) or size < 1:
        raise _bad(path, line, "size", "must be an int ≥ 1", row.get("size"))
    if "cost" in row and not (cost is not None and math.isfinite(cost) and cost > 0):
        raise _bad(path, line, "cost", "must be a finite number of seconds > 0", row["cost"])
    request = row.get("request")
    return Access(key=str(row["key"]), size=size, cost=cost, request=None if request is None else str(request))


def _number(value: object, kind: type[int] | type[float]) -> int | float | None:
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        return None
    return value
