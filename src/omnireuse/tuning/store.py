"""Tuned plans on disk: one file for each configuration, written whole, one process measuring at a time. A second file
keeps what was measured, so that a later process goes on. Replicas on several machines share plans in Redis."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import platformdirs
from filelock import FileLock, Timeout

from omnireuse.base.records import Record, as_text, read_record, write_text
from omnireuse.errors import ConfigError, OmniReuseError, StateError
from omnireuse.planning.path import OutputProducts
from omnireuse.profiles.profile import Profile
from omnireuse.stores.redis import RedisTier

__all__ = ["DIRECTORY", "SHARED", "Store", "folder"]

logger = logging.getLogger("omnireuse")

DIRECTORY = "OMNIREUSE_CACHE_DIR"
"""Environment variable that names the folder of tuned plans."""
SHARED = "OMNIREUSE_CACHE_REDIS"
"""Environment variable with the URL of a Redis server that replicas share plans in."""

SHARED_SECONDS = 2.0
"""How long Redis may take for an answer."""
MEASURED = {"measured format": 2}
"""Head of a file with full runs."""


class _Measured(Record, frozen=True, kw_only=True):
    """Full runs of one configuration: of each call the shape of its products, their values in order, the effects."""

    runs: tuple[tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]], ...]


def folder() -> Path:
    """The folder of tuned plans: `OMNIREUSE_CACHE_DIR`, or else the user's cache folder."""
    given = os.environ.get(DIRECTORY)
    return Path(given) if given else Path(platformdirs.user_cache_dir("omnireuse"))


def _shared() -> RedisTier | None:
    if not (url := os.environ.get(SHARED)):
        return None
    try:
        return RedisTier(url, namespace="omnireuse-plan", timeout_s=SHARED_SECONDS)
    except ConfigError as error:
        raise ConfigError(
            f"{SHARED}: must be the URL of a Redis server, such as redis://host:6379/0 ({error})"
        ) from error


class Store:
    """The tuned plans in a folder, and in Redis where `OMNIREUSE_CACHE_REDIS` is set. What cannot be read or written is
    said once, and plans stay in memory.

    Raises:
        ConfigError: the variable holds no URL of Redis.
        MissingExtraError: it does, and the ``redis`` package is not installed.
    """

    def __init__(self, path: Path | None = None) -> None:
        root = folder() if path is None else path
        self.path, self._measured = root / "tuned", root / "measured"
        self._said: set[str] = set()
        self._shared = _shared()

    def file(self, digest: str) -> Path:
        """The file of a configuration."""
        return self.path / f"{digest}.json"

    def load(self, digest: str) -> Profile | None:
        """The plans of a configuration; None where there are none. Those in Redis replace the file. A damaged file is
        measured anew."""
        file = self.file(digest)
        text = None if self._shared is None else self._shared.lookup(digest)
        if isinstance(text, str) and not (file.is_file() and file.read_text() == text):
            try:
                write_text(file, text)
            except StateError as error:
                self._say(f"tuned plans of other replicas cannot be kept here: {error}")
        if not file.is_file():
            return None
        try:
            return Profile.load(file)
        except OmniReuseError as error:
            self._say(f"tuned plans are measured anew: {error}")
            self.keep_measured(digest, None)
            return None

    def save(self, digest: str, profile: Profile) -> Path | None:
        """Keep plans; None where the disk refuses."""
        file = self.file(digest)
        try:
            profile.save(file)
        except StateError as error:
            self._say(f"tuned plans are kept in memory only: {error}")
            return None
        if self._shared is not None and not self._shared.put(digest, file.read_text()):
            self._say(f"tuned plans are not shared: {SHARED} names a server that does not take them")
        return file

    def measured(self, digest: str) -> list[OutputProducts]:
        """What earlier processes have measured of a configuration, one for each call; empty where nothing is kept."""
        file = self._measured / f"{digest}.json"
        if not file.is_file():
            return []
        try:
            what, remedy = "record of full runs", "they are measured anew"
            kept = read_record(_Measured, file, MEASURED, what=what, remedy=remedy)
            return [OutputProducts(products=np.reshape(a, shape), effects=np.array(b)) for shape, a, b in kept.runs]
        except (OmniReuseError, ValueError) as error:
            self._say(f"full runs are measured anew: {error}")
            return []

    def keep_measured(self, digest: str, products: Sequence[OutputProducts] | None) -> None:
        """Keep what was measured, or that a configuration has been seen; None deletes the file."""
        file = self._measured / f"{digest}.json"
        try:
            if products is None:
                file.unlink(missing_ok=True)
            else:
                each = [(run.products, run.effects) for run in products]
                runs = tuple((a.shape, tuple(a.ravel().tolist()), tuple(b.tolist())) for a, b in each)
                write_text(file, as_text(_Measured(runs=runs), MEASURED))
        except (StateError, OSError) as error:
            self._say(f"what was measured is kept in memory only: {error}")

    def begun(self) -> set[str]:
        """The configurations that have been seen or measured in part, and have no plan."""
        return {file.stem for file in self._measured.glob("*.json") if not self.file(file.stem).is_file()}

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
            if self._shared is not None:
                self._shared.discard(file.stem)
        for beside in (*self.path.glob("*.lock"), *self._measured.glob("*.json")):
            beside.unlink(missing_ok=True)
        return len(files)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)


class _NoLock:
    """Stands for a lock where none can be had."""

    def release(self) -> None:
        """Nothing is held."""
