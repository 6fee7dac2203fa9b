"""A file of a comparison's measurements so far, so that one that was killed goes on where it was."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from omnireuse.errors import ConfigError
from omnireuse.pipelines import Picture

__all__ = ["Journal"]

logger = logging.getLogger("omnireuse")
T = TypeVar("T")


class Journal:
    """Values by part of the work, run and number: one line of JSON each. They are on disk when `add` returns.

    Pictures lie in a folder beside the file.

    Args:
        path: of the file, "….jsonl", which is made if there is none; None keeps nothing.

    Raises:
        ConfigError: another kind of file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self._known = path, dict[tuple[str, str, int], Any]()
        if path is None or not path.exists():
            return
        try:
            *lines, cut_off = path.read_text(encoding="utf-8").split("\n")
            for line in lines:
                part, run, number, value = json.loads(line)
                self._known[part, run, number] = value
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}: not a journal ({error}); delete it, or name another") from error
        if cut_off:  # by a kill in the middle of a line
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def clear(self) -> None:
        """Delete the file and forget its values."""
        self._known.clear()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def check_setup(self, part: str, setup: Mapping[str, str]) -> None:
        """Note what the values of a part depend on; later, hold it against what was noted."""
        known = self.find(part, "setup", 0, dict[str, str])
        if known is None:
            self.add(part, "setup", 0, dict(setup))
            return
        other = [name for name in sorted({*known, *setup}) if known.get(name) != setup.get(name)]
        if other:
            raise ConfigError(
                f"{self.path}: {part} was begun with another {' and another '.join(other)}; delete the file to begin "
                "anew (--fresh of the command does), or name another"
            )
        logger.info("%s: going on with %s", self.path, part)

    def add(self, part: str, run: str, number: int, value: Any) -> None:
        """Keep a value: a record, or plain data."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        plain = self._known[part, run, number] = msgspec.to_builtins(value)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([part, run, number, plain]) + "\n")

    def find(self, part: str, run: str, number: int, kind: type[T]) -> T | None:
        """The value of this number, if it is known."""
        found = self._known.get((part, run, number))
        return None if found is None else msgspec.convert(found, kind)

    def add_picture(self, part: str, run: str, number: int, picture: Picture) -> None:
        """Keep a picture."""
        if (path := self.beside(f"{part} {run} {number}", "npy")) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, picture, allow_pickle=False)
            self.add(part, run, number, path.name)

    def find_picture(self, part: str, run: str, number: int) -> Picture | None:
        """The picture of this number, if it is known."""
        path = self.beside(f"{part} {run} {number}", "npy")
        if path is None or self.find(part, run, number, str) is None:
            return None
        try:
            found: Picture = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: not a picture of {self.path} ({error}); begin anew (--fresh)") from error
        return found

    def beside(self, name: str, kind: str) -> Path | None:
        """The file in the journal's folder for what is named so; None if nothing is kept."""
        if self.path is None:
            return None
        return self.path.with_suffix("") / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.{kind}"
