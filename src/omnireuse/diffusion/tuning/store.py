"""Tuned plans on disk: one file for each configuration, written whole, one process measuring at a time."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.errors import OmniReuseError, StateError

__all__ = ["DIRECTORY", "Store", "folder"]

logger = logging.getLogger("omnireuse")

DIRECTORY = "OMNIREUSE_CACHE_DIR"
"""Environment variable that names the folder of tuned plans."""


def folder() -> Path:
    """The folder of tuned plans: `OMNIREUSE_CACHE_DIR`, or else the user's cache folder."""
    given = os.environ.get(DIRECTORY)
    return Path(given) if given else Path(platformdirs.user_cache_dir("omnireuse"))


class Store:
    """The tuned plans in a folder. What cannot be read or written is said once, and plans stay in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = (folder() if path is None else path) / "tuned"
        self._said: set[str] = set()

    def file(self, digest: str) -> Path:
        """The file of a configuration."""
        return self.path / f"{digest}.json"

    def load(self, digest: str) -> Profile | None:
        """The plans of a configuration; None where there are none. A damaged file is measured anew."""
        file = self.file(digest)
        if not file.is_file():
            return None
        try:
            return Profile.load(file)
        except OmniReuseError as error:
            self._say(f"tuned plans are measured anew: {error}")
            return None

    def save(self, digest: str, profile: Profile) -> Path | None:
        """Keep plans; None where the disk refuses."""
        file = self.file(digest)
        try:
            profile.save(file)
        except StateError as error:
            self._say(f"tuned plans are kept in memory only: {error}")
            return None
        return file

    def lock(self, digest: str) -> FileLock | _NoLock | None:
        """The lock of the process that measures a configuration; None where another process holds it."""
        lock = FileLock(self.path / f"{digest}.lock", thread_local=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout:
            return None
        except OSError as error:
            self._say(f"tuned plans are kept in memory only: {self.path} cannot be written ({error.strerror})")
            return _NoLock()
        return lock

    def files(self) -> list[Path]:
        """The files of all plans, by name."""
        return sorted(self.path.glob("*.json")) if self.path.is_dir() else []

    def clear(self) -> int:
        """Delete all plans; return how many there were."""
        files = self.files()
        for file in files:
            file.unlink(missing_ok=True)
        for lock in self.path.glob("*.lock"):
            lock.unlink(missing_ok=True)
        return len(files)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)


class _NoLock:
    """Stands for a lock where none can be had."""

    def release(self) -> None:
        """Nothing is held."""
