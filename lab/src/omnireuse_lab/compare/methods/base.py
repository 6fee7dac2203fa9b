"""The things compared: a method, and each of its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Protocol, TypeAlias

import omnireuse
from omnireuse.errors import UnsupportedModelError
from omnireuse.pipelines import Picture
from omnireuse_lab.compare.workload import Workload

__all__ = ["Kept", "Method", "Setting", "Subject", "calibration_workload", "call_text", "lazily", "reuse", "unchanged"]

Kept: TypeAlias = "Callable[[], int | None]"
"""Bytes that are kept right now between steps; None if that cannot be known."""


class Subject(Protocol):
    """The inputs of a grid: the workload, a picture of it in few steps, and the denoiser's calls in a step."""

    workload: Workload
    probe: Picture
    calls_per_step: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One method at one of its settings.

    Attributes:
        settings: for the record.
        call: as a person would write it.
        enable: pipeline -> a context in which the method works; it gives a function to the bytes that are kept. Changes
            of the pipeline need not be undone.
        steps: of the run; None for those of the full run.
        version: of what the call names without saying what is in it, such as a file.
    """

    settings: Mapping[str, Any]
    call: str
    enable: Callable[[Any], AbstractContextManager[Kept]]
    steps: int | None = None
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method and its settings.

    Attributes:
        key: the name that ``--only`` takes.
        name: for people.
        family: "ours", "peer" (another library's cache) or "baseline" (no cache).
        grid: its settings for a subject. It raises `UnsupportedModelError` if the method does not serve the workload.
        extra: the optional dependency that it needs; "" for none.
        version: of its code, if figures of an earlier version may be kept.
    """

    key: str
    name: str
    family: str
    grid: Callable[[Subject], Iterable[Setting]] = field(repr=False)
    extra: str = ""
    version: str = ""


@contextmanager
def unchanged(_: Any) -> Iterator[Kept]:
    """Enable nothing and keep nothing."""
    yield lambda: 0


def call_text(function: str, *positional: str, **options: Any) -> str:
    """A call as a person would write it."""
    return f"{function}({', '.join([*positional, *(f'{name}={value!r}' for name, value in options.items())])})"


def reuse(
    name: str, options: Mapping[str, Any] | Callable[[], Mapping[str, Any]], *, call: str = "", **settings: Any
) -> Setting:
    """A setting of `omnireuse.enable`.

    Args:
        options: of `enable`; if they must be calibrated, a function that is called when the setting is enabled.
        call: as a person would write it; the name with the settings by default.
    """
    text = call or call_text(name, **settings)
    return Setting(settings=settings, call=text, enable=partial(_enabled, options=options))


@contextmanager
def _enabled(pipeline: Any, options: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> Iterator[Kept]:
    with omnireuse.enable(pipeline, **(options() if callable(options) else options)) as handle:
        yield lambda: handle.summary().kept_bytes


def calibration_workload(workload: Workload, count: int) -> Workload:
    """The same case with `count` of its prompts to calibrate on, or all of them."""
    if not workload.calibration:
        raise UnsupportedModelError(
            f"{workload.name}: a method that calibrates itself needs prompts that are not compared; give "
            "calibration_prompts"
        )
    prompts = workload.calibration[:count]
    return replace(workload, prompts=prompts, scores={}, calibration=(), seed=workload.calibration_seed)


def lazily(
    subject: Subject, prompts: int, calibrate: Callable[[Workload], Any], use: Callable[..., Mapping[str, Any]]
) -> Callable[..., Callable[[], Mapping[str, Any]]]:
    """Options of `enable` that need a calibration, which is done once, when the first setting is enabled.

    Args:
        prompts: how many to calibrate on.
        calibrate: from the calibration workload to what it found.
        use: from what it found and the arguments of a setting to the options.

    Returns:
        From the arguments of a setting to the function that `reuse` takes.
    """
    work = calibration_workload(subject.workload, prompts)
    found = cache(lambda: calibrate(work))
    return lambda *args, **kwargs: lambda: use(found(), *args, **kwargs)
