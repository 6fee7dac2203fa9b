"""A tier on disk: one file a value, written aside and renamed, within a quota, safe beside other processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from omnireuse.core.stores.memory import check_budget
from omnireuse.core.stores.tier import CircuitBreaker, Tier

__all__ = ["DiskTier"]

_SUFFIX, _PART = ".orv", ".part"
_ABANDONED_S = 600.0


class DiskTier(Tier):
    """Values as files under ``directory``.

    A reader sees a whole file or none, because a rename within one directory is atomic. When the quota is passed the
    files read longest ago go; any process may do that at any time, so a file that vanishes is a plain miss. Parts
    that a killed process left are removed after ten minutes.

    Args:
        directory: made when it is first written to.
        max_bytes: quota in bytes over all namespaces, at least 1.
        namespace: see :class:`Tier`.
        breaker: see :class:`Tier`.
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
        self.max_bytes = max_bytes
        check_budget("DiskTier", "max_bytes", 0 if max_bytes is None else max_bytes)  # None is no quota at all
        self._clock = clock

    def close(self) -> None:
        """Nothing is kept open."""

    def num_bytes(self) -> int:
        """Bytes on disk now, by all processes."""
        return sum(size for _, size, _ in self._files())

    def _path(self, full: str) -> Path:
        return self.directory / (hashlib.blake2b(full.encode(), digest_size=20).hexdigest() + _SUFFIX)

    def _read(self, full: str) -> bytes | None:
        path = self._path(full)
        try:
            data = path.read_bytes()
            os.utime(path, (self._clock(), path.stat().st_mtime))  # the order of use, kept where all processes see it
        except FileNotFoundError:
            return None
        except PermissionError:
            if not path.exists():
                raise
            # A file that can be read but not touched (a read-only share) is still a hit.
            return path.read_bytes()
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
            now = self._clock()
            os.utime(part, (now, now))
            Path(part).replace(self._path(full))
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(part).unlink()
            raise
        return True

    def _delete(self, full: str) -> None:
        self._path(full).unlink(missing_ok=True)

    def _keys(self, prefix: str) -> Iterator[str]:
        # File names are digests; the header of each file holds its key.
        for _, _, path in self._files():
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError), path.open("rb") as file:
                file.seek(20)
                length = int.from_bytes(file.read(8), "little")
                key = json.loads(file.read(min(length, 1 << 20)))["key"]
                if key.startswith(prefix):
                    yield key

    def _files(self) -> list[tuple[float, int, Path]]:
        """(last use, bytes, path) of every value, oldest first."""
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
        return sorted(found, key=lambda item: (item[0], str(item[2])))

    def _make_room(self, incoming: int) -> None:
        files = self._files()
        excess = sum(size for _, size, _ in files) + incoming - self.max_bytes
        for _, size, path in files:
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            self._count("evictions")
            excess -= size
