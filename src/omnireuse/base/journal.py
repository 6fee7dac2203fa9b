"""A file of a long work's measurements so far, so that one that was killed goes on where it was."""

from __future__ import annotations

import io
import logging
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from omnireuse.errors import ConfigError

__all__ = ["IN_MEMORY", "Journal", "remove_journal"]

logger = logging.getLogger("omnireuse")
T = TypeVar("T")

IN_MEMORY = ":memory:"
"""A path for files that last as long as the journal is open."""
HEAD = b"SQLite format 3\0"
TABLE = (
    "CREATE TABLE IF NOT EXISTS made (part TEXT, run TEXT, number INTEGER, value BLOB, PRIMARY KEY (part, run, number))"
)


class Journal:
    """Values by part of the work, run and number in an SQLite database; a value is on disk when `add` returns.

    Args:
        path: of the database, made if there is none; None keeps nothing.

    Raises:
        ConfigError: another kind of file, or one that cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path, self._data = path, None
        if path is None:
            return
        try:
            if path != IN_MEMORY:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._data = sqlite3.connect(path)
            self._data.execute(TABLE)
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise ConfigError(f"{path}: not a journal ({error}); delete it, or name another") from error

    def close(self) -> None:
        """Close the file."""
        if self._data is not None:
            self._data.close()

    def check_setup(self, part: str, setup: Mapping[str, str]) -> None:
        """Note what the values of a part depend on; later, hold it against what was noted."""
        known = self.find(part, "setup", 0, dict[str, str])
        if known is None:
            self.add(part, "setup", {0: dict(setup)})
            return
        other = [name for name in sorted({*known, *setup}) if known.get(name) != setup.get(name)]
        if other:
            raise ConfigError(
                f"{self.path}: {part} was begun with another {' and another '.join(other)}; delete the file to begin "
                "anew (--fresh of the command does), or name another"
            )
        logger.info("%s: going on with %s", self.path, part)

    def add(self, part: str, run: str, values: Mapping[int, Any]) -> None:
        """Keep these values by number, all or none of them."""
        if self._data is not None:
            rows = [(part, run, number, _bytes(value)) for number, value in values.items()]
            with self._data:
                self._data.executemany("INSERT OR REPLACE INTO made VALUES (?, ?, ?, ?)", rows)

    def _read(self, part: str, run: str, number: int) -> bytes | None:
        if self._data is None:
            return None
        query = "SELECT value FROM made WHERE part = ? AND run = ? AND number = ?"
        found = self._data.execute(query, (part, run, number)).fetchone()
        return None if found is None else found[0]

    def find(self, part: str, run: str, number: int, kind: type[T]) -> T | None:
        """The value of this number, if it is known."""
        found = self._read(part, run, number)
        return None if found is None else msgspec.json.decode(found, type=kind)

    def picture(self, part: str, run: str, number: int) -> NDArray[Any] | None:
        """The picture of this number, if it is known."""
        found = self._read(part, run, number)
        return None if found is None else np.load(io.BytesIO(found), allow_pickle=False)


def remove_journal(path: Path) -> None:
    """Delete a journal, if there is one, with what SQLite keeps beside it."""
    try:
        with path.open("rb") as file:
            head = file.read(len(HEAD))
        if head and head != HEAD:
            raise ConfigError(f"{path}: not a journal, so it is not removed; move it, or name another file")
        path.unlink()
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: cannot be removed ({error.strerror})") from error


def _bytes(value: Any) -> bytes:
    if not isinstance(value, np.ndarray):
        return msgspec.json.encode(value)
    np.save(target := io.BytesIO(), value, allow_pickle=False)
    return target.getvalue()
