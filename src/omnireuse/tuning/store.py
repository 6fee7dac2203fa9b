"""Tuned plans on disk: one file for each configuration, written whole, one process measuring at a time. A second file
keeps what was measured, so that a later process goes on. Replicas on several machines share plans in Redis.

Every file names its whole configuration and has a checksum of its content. What does not fit is measured anew."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import platformdirs
from filelock import FileLock, Timeout

from omnireuse.base.once import Once
from omnireuse.base.records import Record, as_text, record_of, write_text
from omnireuse.errors import ConfigError, OmniReuseError, StateError
from omnireuse.planning.path import OutputProducts
from omnireuse.policies.base import SAME_NOISE
from omnireuse.profiles.profile import HEAD, Profile
from omnireuse.stores.redis import RedisTier
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.search import CandidateRecord

__all__ = ["DIRECTORY", "SHARED", "Measured", "SearchRecord", "Store", "folder", "read_kept", "read_measured"]

logger = logging.getLogger("omnireuse")

DIRECTORY = "OMNIREUSE_CACHE_DIR"
"""Environment variable that names the folder of tuned plans."""
SHARED = "OMNIREUSE_CACHE_REDIS"
"""Environment variable with the URL of a Redis server that replicas share plans in."""

SHARED_SECONDS = 2.0
"""How long Redis may take for an answer."""
MEASURED = {"measured format": 3}
"""Head of a file with full runs."""
LARGEST = 1e9
"""Largest inner product of two outputs, as a share of the squared norm of the final latents, and largest effect."""

UNUSED = "nothing of it is used"

R = TypeVar("R", bound=Record)


class SearchRecord(Record, frozen=True, kw_only=True):
    """What an unfinished search for a plan has shown.

    Attributes:
        pictures: that each candidate follows.
        runs: work of the trial runs so far, in full runs.
        candidates: as `Search.kept`.
    """

    pictures: int
    runs: float
    candidates: tuple[CandidateRecord, ...]


class Measured(Record, frozen=True, kw_only=True):
    """What processes have measured of one configuration.

    Attributes:
        budgets: numbers of computed steps that pictures were asked with.
        runs: of each call the shape of its products, their values in order, the effects.
        tried: the trial runs of unfinished searches, by the number of computed steps.
    """

    budgets: tuple[int, ...] = ()
    runs: tuple[tuple[tuple[int, int, int, int, int], tuple[float, ...], tuple[float, ...]], ...] = ()
    tried: Mapping[int, SearchRecord] = {}

    @classmethod
    def of(cls, calls: Sequence[OutputProducts], budgets: Iterable[int], tried: Mapping[int, SearchRecord]) -> Measured:
        """From what is known of each call."""
        each = [(run.products, run.effects) for run in calls]
        runs: Any = tuple((a.shape, tuple(a.ravel().tolist()), tuple(b.tolist())) for a, b in each)
        return cls(budgets=tuple(sorted(budgets)), runs=runs, tried=tried)

    @property
    def calls(self) -> list[OutputProducts]:
        """What is known of each call."""
        each = ((np.reshape(values, shape), np.array(effects)) for shape, values, effects in self.runs)
        return [OutputProducts(products=products, effects=effects) for products, effects in each]


def _check(run: OutputProducts, total: int) -> None:
    """Refuse values that no full run of so many steps has."""
    products, effects = run.products, run.effects
    samples, branches = products.shape[:2]
    if not products.size or products.shape[1:] != (branches, total, branches, total) or effects.shape != (total,):
        raise ValueError(f"inner products of {total} steps have not the shape {products.shape}")
    matrices = products.reshape(samples, branches * total, branches * total)
    if max(np.abs(products).max(), np.abs(effects).max()) > LARGEST:
        raise ValueError(f"inner products and effects must be at most {LARGEST:g}")
    if not np.allclose(matrices, matrices.transpose(0, 2, 1)) or np.diagonal(matrices, axis1=1, axis2=2).min() < 0:
        raise ValueError("inner products must be symmetric, and those of an output with itself at least 0")


def _kept_text(record: Record, head: Mapping[str, Any], configuration: Configuration) -> str:
    return as_text(record, {**head, "configuration": configuration.content}, seals=True)


def _kept(
    kind: type[R], data: bytes | str, head: Mapping[str, Any], digest: str, place: str
) -> tuple[R, Configuration]:
    """What `_kept_text` has written for the configuration with this digest.

    Raises:
        ConfigError: it is damaged, or of another configuration.
    """
    found: list[Configuration] = []

    def take(document: dict[str, Any]) -> None:
        found.append(msgspec.convert(document.pop("configuration"), Configuration))
        if found[0].digest != digest:
            raise ConfigError(f"{place}: configuration must have the digest {digest}, got {found[0].digest}; {UNUSED}")

    what = "file of tuning"
    record = record_of(kind, data, head, place=place, what=what, remedy=UNUSED, upgrade=take, is_sealed=True)
    return record, found[0]


def read_kept(data: bytes | str, digest: str, place: str) -> tuple[Profile, Configuration]:
    """The plans in a file's content, and the runs that they are for.

    Args:
        digest: of the configuration that they must belong to.
        place: where they come from, for errors.

    Raises:
        ConfigError: they are damaged, of another configuration, or no run can follow them.
    """
    profile, configuration = _kept(Profile, data, HEAD, digest, place)
    pairs = zip(profile.coordinates, configuration.noises, strict=False)
    is_like = profile.conditions == configuration.conditions and len(profile.coordinates) == len(configuration.noises)
    if not is_like or any(abs(a - b) > SAME_NOISE for a, b in pairs):
        raise ConfigError(f"{place}: plans must be of the configuration beside them; {UNUSED}")
    for count, plan in profile.plans.items():
        if plan.evidence is None or (plan.weights and not (plan.evidence.errors and len(plan.steps) == count)):
            raise ConfigError(f"{place}: plans[{count}] must have evidence, and so many steps; {UNUSED}")
        try:
            plan.strategy(profile.coordinates)
        except ConfigError as error:
            raise ConfigError(f"{place}: plans[{count}] cannot be followed ({error}); {UNUSED}") from error
    return profile, configuration


def read_measured(data: bytes | str, digest: str, place: str) -> tuple[Measured, Configuration]:
    """What was measured of runs, and which; arguments and errors as `read_kept` has them, and `ValueError`."""
    measured, configuration = _kept(Measured, data, MEASURED, digest, place)
    for run in measured.calls:
        _check(run, len(configuration.noises))
    return measured, configuration


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
        raise ConfigError(f"{SHARED}: must be the URL of a Redis server, as redis://host:6379/0 ({error})") from error


class Store:
    """The tuned plans in a folder, and in Redis if `OMNIREUSE_CACHE_REDIS` is set. What cannot be read or written is
    said once, and plans stay in memory.

    Raises:
        ConfigError: the variable holds no URL of Redis.
        MissingExtraError: it does, and the ``redis`` package is not installed.
    """

    def __init__(self, path: Path | None = None) -> None:
        root = folder() if path is None else path
        self.path, self._measured = root / "tuned", root / "measured"
        self._say = Once().say
        self._shared = _shared()

    def file(self, digest: str) -> Path:
        return self.path / f"{digest}.json"

    def load(self, digest: str) -> Profile | None:
        """The plans of a configuration; None if there are none. Those in Redis replace the file. What is damaged or
        belongs to another configuration is measured anew."""
        file = self.file(digest)
        text = None if self._shared is None else self._shared.lookup(digest)
        profile = None if text is None else self._plans(str(text), digest, f"{SHARED}: {digest}")
        if profile is not None:
            try:
                if _content(file) != str(text).encode():
                    write_text(file, str(text))
            except (StateError, OSError) as error:
                self._say(f"tuned plans of other replicas cannot be kept here: {error}")
            return profile
        try:
            data = _content(file)
        except OSError as error:
            self._say(f"tuned plans are measured anew: {file} cannot be read ({error.strerror})")
            return None
        if data is None:
            return None
        if (profile := self._plans(data, digest, str(file))) is None:
            try:
                (self._measured / file.name).unlink(missing_ok=True)
            except OSError as error:
                self._memory_only(error)
        return profile

    def _plans(self, data: bytes | str, digest: str, place: str) -> Profile | None:
        try:
            return read_kept(data, digest, place)[0]
        except OmniReuseError as error:
            self._say(f"tuned plans are measured anew: {error}")
            return None

    def save(self, configuration: Configuration, profile: Profile) -> Path | None:
        """Keep plans; None if the disk refuses."""
        digest = configuration.digest
        file, text = self.file(digest), _kept_text(profile, HEAD, configuration)
        try:
            write_text(file, text)
        except StateError as error:
            self._memory_only(error)
            return None
        if self._shared is not None and not self._shared.put(digest, text):
            self._say(f"tuned plans are not shared: {SHARED} names a server that does not take them")
        return file

    def measured(self, digest: str) -> Measured:
        """What earlier processes have measured of a configuration; nothing if none is kept."""
        file = self._measured / f"{digest}.json"
        try:
            data = _content(file)
            return Measured() if data is None else read_measured(data, digest, str(file))[0]
        except (OmniReuseError, ValueError, OSError) as error:
            self._say(f"full runs are measured anew: {error}")
            return Measured()

    def keep_measured(self, configuration: Configuration, measured: Measured) -> None:
        """Keep what was measured, or that a configuration has been seen."""
        try:
            text = _kept_text(measured, MEASURED, configuration)
            write_text(self._measured / f"{configuration.digest}.json", text)
        except (StateError, ValueError) as error:
            self._memory_only(error)

    def unfinished(self) -> list[Path]:
        """The files of what has been seen or measured in part, and has no plan, by name."""
        return [file for file in sorted(self._measured.glob("*.json")) if not self.file(file.stem).is_file()]

    def lock(self, digest: str) -> FileLock | None:
        """The lock of the process that measures a configuration; None if another process holds it. It is not held
        if the disk refuses."""
        lock = FileLock(self.path / f"{digest}.lock", thread_local=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout:
            return None
        except OSError as error:
            self._memory_only(error)
        return lock

    def files(self) -> list[Path]:
        """The files of all plans, by name."""
        return sorted(self.path.glob("*.json")) if self.path.is_dir() else []

    def near(self, configuration: Configuration) -> str:
        """How the arguments of saved plans of the same pipeline differ from this configuration's, in words; of the
        plans with the fewest differences. Empty if there are none."""
        steps, found = len(configuration.noises), list[dict[str, str]]()
        own = {**configuration.call, "num_inference_steps": str(steps)}
        own.pop("judged", None)  # goes with a quality or a tolerance
        for file in self.files():
            try:
                other = msgspec.convert(msgspec.json.decode(file.read_bytes())["configuration"], Configuration)
            except Exception:  # damage is reported when the plan is used
                logger.debug("%s is not read", file)
                continue
            is_near = len(other.noises) > steps / 2 and steps > len(other.noises) / 2
            if is_near and other.conditions == configuration.conditions:
                call = {**other.call, "num_inference_steps": str(len(other.noises))}
                found.append({name: call.get(name, "") for name in own if call.get(name) != own[name]})
        unlike = min(filter(None, found), key=len, default=None)
        if unlike is None:
            return ""
        kept, here = (
            ", ".join(f"{name}={each[name]}" if each[name] else f"no {name}" for name in unlike)
            for each in (unlike, own)
        )
        return f"a plan is kept for {kept}, and this call has {here}"

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

    def _memory_only(self, error: Exception) -> None:
        """Say once that the folder cannot be written, whatever should have been written there."""
        refusal = error.__cause__ if isinstance(error.__cause__, OSError) else error
        why = refusal.strerror if isinstance(refusal, OSError) else refusal
        self._say(
            f"tuned plans and measurements are kept in memory only: {self.path.parent} cannot be written ({why}); "
            f"{DIRECTORY} names another folder"
        )


def _content(file: Path) -> bytes | None:
    """The content of a file; None if there is none."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
