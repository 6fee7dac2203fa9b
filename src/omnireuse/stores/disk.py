"""A tier on disk: one file for each value, written beside and renamed, within a quota, safe beside other processes.

Why not ``diskcache``: it unpickles rows of its index, so whoever can write to the directory can run code; a damaged
index loses every value, while here a damaged file loses one; and it would save about 40 lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from omnireuse.stores.memory import check_budget
from omnireuse.stores.tier import CircuitBreaker, Tier

__all__ = ["DiskTier"]

_SUFFIX, _PART = ".orv", ".part"
_ABANDONED_S = 600.0


class DiskTier(Tier):
    """Values as files under ``directory``.

    A reader sees a whole file or none, because a rename within one directory is atomic. Beyond the quota, the files
    read longest ago go; any process may delete any file at any time, so a file that vanishes is a plain miss. Parts
    that a killed process left are removed after ten minutes.

    Args:
        directory: made when it is first written to.
        max_bytes: quota in bytes over all namespaces, at least 1.
        namespace, breaker: see :class:`Tier`.
        clock: seconds since the epoch, for the order of use.

    Raises:
        ConfigError: ``max_bytes`` below 1.
    """

    name = "disk"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_bytes: int,
        namespace: str = "",
        breaker: CircuitBreaker | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(namespace=namespace, breaker=breaker)
        self.directory = Path(directory)
        check_budget("DiskTier", "max_bytes", 0 if max_bytes is None else max_bytes)  # None is no quota at all
        self.max_bytes, self._clock = max_bytes, clock

    def num_bytes(self) -> int:
        """Bytes on disk now, by all processes."""
        return sum(size for _, size, _ in self._files())

    def _path(self, full: str) -> Path:
        return self.directory / (hashlib.blake2b(full.encode(), digest_size=20).hexdigest() + _SUFFIX)

    def _read(self, full: str) -> bytes | None:
        path = self._path(full)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        # The order of use is kept where all processes see it; on a read-only share there is none.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.utime(path, (self._clock(), path.stat().st_mtime))
        return data

    def _write(self, full: str, data: bytes) -> bool:
        if len(data) > self.max_bytes:
            self._count("refused")
            return False
        self.directory.mkdir(parents=True, exist_ok=True)
        self._make_room(len(data))
        handle, part = tempfile.mkstemp(suffix=_PART, dir=self.directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.utime(part, (self._clock(), self._clock()))
            Path(part).replace(self._path(full))
        finally:
            Path(part).unlink(missing_ok=True)
        return True

    def _delete(self, full: str) -> None:
        self._path(full).unlink(missing_ok=True)

    def _files(self) -> list[tuple[float, int, Path]]:
        """Return (last use, bytes, path) of every value, oldest first; remove abandoned parts."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat()
                    if entry.name.endswith(_SUFFIX):
                        found.append((info.st_atime, info.st_size, Path(entry.path)))
                    elif entry.name.endswith(_PART) and self._clock() - info.st_mtime > _ABANDONED_S:
                        Path(entry.path).unlink()
                        self._count("abandoned")
        return sorted(found)

    def _make_room(self, incoming: int) -> None:
        files = self._files()
        excess = sum(size for _, size, _ in files) + incoming - self.max_bytes
        for _, size, path in files:
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            self._count("evictions")
            excess -= size
