"""The engine around: whether reuse was tested in its release, the hooks into it, and its log."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from omnireuse.errors import ConfigError

__all__ = [
    "OVERRIDE",
    "SWITCH",
    "Original",
    "Seam",
    "check_host",
    "install",
    "is_switched_off",
    "is_tested",
    "log_through",
    "warn_once",
]

logger = logging.getLogger("omnireuse")

OVERRIDE = "OMNIREUSE_UNTESTED_HOST"
"""The environment variable that lets reuse into a release that it was not tested in."""


SWITCH = "OMNIREUSE_OFF"
"""The environment variable that names the file of `is_switched_off`."""
_was_off = False


def is_switched_off() -> bool:
    """The operator's live switch: whether the file that ``OMNIREUSE_OFF`` names exists now. A change is logged.

    Raises:
        ConfigError: the variable is no absolute path.

    Cost: one look at the file system, some µs; none without the variable.
    """
    global _was_off
    if (given := os.environ.get(SWITCH)) is None:
        return False
    if not Path(given).is_absolute():
        raise ConfigError(
            f"{SWITCH}={given!r:.60}: the variable must be an absolute path, of a file that switches reuse off while "
            "it exists"
        )
    is_off = Path(given).exists()
    if is_off != _was_off:
        _was_off = is_off
        does, now = ("exists", "computes every step") if is_off else ("is gone", "may reuse steps again")
        logger.warning("%s: %s %s, and each request from now on %s", SWITCH, given, does, now)
    return is_off


Original = Callable[..., Any]
"""A hooked function of an engine."""
Seam = tuple[str, str, Callable[..., Any]]
"""Module, function within it, and its hook, which is called with the original and the arguments."""


def install(seams: Sequence[Seam], *, engine: str) -> list[str]:
    """Wrap each function once, and return those that are not there. The hooks of those that are call the original."""
    missing: list[str] = []
    for module, path, hook in seams:
        try:
            owner: Any = import_module(module)
            *outer, name = path.split(".")
            for each in outer:
                owner = getattr(owner, each)
            original = getattr(owner, name)
        except (ImportError, AttributeError) as error:
            missing.append(f"{module}.{path} ({error})")
            continue
        if not getattr(original, "omnireuse", False):
            setattr(owner, name, _hooked(original, hook))
    if missing:
        logger.error("omnireuse cannot get into this %s; not hooked: %s", engine, ", ".join(missing))
    return missing


def _hooked(original: Original, hook: Callable[..., Any]) -> Original:
    @functools.wraps(original)
    def hooked(*args: object, **kwargs: object) -> Any:
        return hook(original, *args, **kwargs)

    hooked.omnireuse = True  # type: ignore[attr-defined]  # the mark that makes installing idempotent
    return hooked


def is_tested(present: str, tested: Sequence[str]) -> bool:
    """Whether this is a final release of a tested series: a patch, a post-release or a local build of it counts, a
    release candidate, a development version or a source build without a version (0.0.0) does not.

    Args:
        tested: series, such as "0.30"; the version must begin with all of the numbers.
    """
    try:
        found = Version(present)
    except InvalidVersion:
        return False
    series = [Version(each).release for each in tested]
    return not found.is_prerelease and any(found.release[: len(each)] == each for each in series)


def check_host(package: str, tested: Sequence[str], missing: Sequence[str] = (), *, asked: str) -> None:
    """Raise unless this release of the engine was tested (`is_tested`) and every hook was applied.

    ``OMNIREUSE_UNTESTED_HOST=1`` allows another release, with one warning, but no missing hook.

    Args:
        tested: series of releases, such as "0.30".
        asked: where reuse was asked for, for the error.
    """
    try:
        present = version(package)
    except PackageNotFoundError:
        present = "unknown"
    said = f"{package} {present} is not supported; this release of omnireuse was tested with {', '.join(tested)}"
    if missing:
        raise ConfigError(f"{asked}: {said}; not hooked: {', '.join(missing)}")
    if is_tested(present, tested):
        return
    if os.environ.get(OVERRIDE) != "1":
        raise ConfigError(
            f"{asked}: {said}; install one of them, or set {OVERRIDE}=1, at the risk that a hook means something else "
            "there and pictures are wrong without an error"
        )
    warn_once(f"{said}; {OVERRIDE}=1 lets it in: compare its pictures with those of a server without reuse")


@functools.lru_cache(256)
def warn_once(text: str) -> None:
    """Log a warning, once in a process."""
    logger.warning("%s", text)


def log_through(host: str) -> None:
    """Hand omnireuse's log to the engine's own logger, which has handlers and a level. Idempotent.

    A logger that the user has given handlers of its own stays as it is.
    """
    if not logger.handlers:
        logger.parent = logging.getLogger(host)
        logger.setLevel(logger.level)  # forgets what was let through under the former parent
