"""The record of a comparison: cases, and in each the points of quality against compute that methods reach."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count
from pathlib import Path
from typing import TypeAlias

import msgspec

import omnireuse
from omnireuse.base.records import Record, as_text, read_record, write_text
from omnireuse.errors import ConfigError
from omnireuse_lab.closeness import Mean, MedianRange

__all__ = [
    "FAMILIES",
    "Case",
    "Comparison",
    "Point",
    "Reference",
    "environment",
    "read_comparison",
    "write_comparison",
]

HEAD = {"format": 3, "kind": "comparison"}
FAMILIES = ("ours", "peer", "baseline")
Settings: TypeAlias = "dict[str, str | float | int | bool | None]"


class Point(Record, frozen=True, kw_only=True):
    """One method at one of its settings.

    Attributes:
        method: its name for people.
        family: "ours", "peer" (another library's cache) or "baseline" (no cache).
        settings: their values.
        computed_steps: share of the denoiser's blocks that really ran, times the steps of the full run.
        psnr: dB to the full run from the same noise, at most 100 for each prompt.
        each: PSNR of each prompt.
        ssim: structural similarity to the full run.
        scores: those of the workload, by name.
        speedup: wall-clock of the full run over its own, prompt by prompt; None if it was not timed.
        seconds: its own wall-clock; None if it was not timed.
        peak_bytes: the most that CUDA had allocated while it was timed; None without CUDA.
        kept_bytes: the most that was kept between steps; None if it is not known.
        call: the call as a person would write it.
        error: why there are no figures; None if there are.
        worst: file name, relative to the record, of the full run's picture beside its own, at the prompt where they
            differ most; empty if it was not kept.
    """

    method: str
    family: str
    settings: Settings
    computed_steps: float | None = None
    psnr: Mean | None = None
    each: tuple[float, ...] = ()
    ssim: Mean | None = None
    scores: dict[str, Mean] = msgspec.field(default_factory=dict)
    speedup: MedianRange | None = None
    seconds: MedianRange | None = None
    peak_bytes: int | None = None
    kept_bytes: int | None = None
    call: str
    error: str | None = None
    worst: str = ""

    def __post_init__(self) -> None:
        if Path(self.worst).is_absolute() or ".." in Path(self.worst).parts:
            raise ConfigError(f"Point(worst={self.worst!r}): worst must lie in the folder of the record")
        if self.family not in FAMILIES:
            raise ConfigError(f"Point(family={self.family!r}): family must be {', '.join(map(repr, FAMILIES))}")
        if (self.error is None) != (self.psnr is not None and self.computed_steps is not None):
            raise ConfigError(f"Point(method={self.method!r}): must hold either an error or its figures")


class Reference(Record, frozen=True, kw_only=True):
    """The reference of all comparisons.

    Attributes:
        seconds: wall-clock of one generation; None if nothing was timed.
        scores: the means of its own, by name.
        peak_bytes: as in `Point`.
    """

    seconds: MedianRange | None = None
    scores: dict[str, float] = msgspec.field(default_factory=dict)
    peak_bytes: int | None = None


class Case(Record, frozen=True, kw_only=True):
    """One pipeline at one number of steps and one guidance.

    Attributes:
        pipeline: its name.
        steps: of the full run.
        guidance: classifier-free guidance; 1 is none.
        prompts: in the order of every point's `each`.
        seed: of the first prompt's noise; the others count on from it.
        points: one for each method and setting, in the order they were measured.
        missing: what is not measured: calls of settings, as `Point.call`.
    """

    pipeline: str
    steps: int
    guidance: float
    prompts: tuple[str, ...]
    seed: int = 0
    full: Reference
    points: tuple[Point, ...]
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"Case(steps={self.steps}): steps must be at least 1")
        for point in self.points:
            if point.error is None and len(point.each) != len(self.prompts):
                raise ConfigError(
                    f"Case(points): {point.method} must hold one PSNR for each of {len(self.prompts)} prompts, "
                    f"got {len(point.each)}"
                )

    @property
    def name(self) -> str:
        """The case as a heading names it."""
        guided = f"guidance {self.guidance:g}" if self.guidance > 1.0 else "no guidance"
        return f"{self.pipeline}, {self.steps} steps, {guided}"


class Comparison(Record, frozen=True, kw_only=True):
    """A whole comparison.

    Attributes:
        command: its maker.
        created: date and time, ISO 8601.
        environment: versions and hardware.
        complete: False if it was interrupted.
        cases: at least one.
        not_chosen: names of methods that were not asked for.
    """

    command: str
    created: str
    environment: dict[str, str]
    complete: bool
    cases: tuple[Case, ...]
    not_chosen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.cases:
            raise ConfigError("Comparison(cases): cases must hold at least one")


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the record as JSON, whole or not at all."""
    write_text(path, as_text(comparison, HEAD))


def read_comparison(path: Path) -> Comparison:
    """Read a file of `write_comparison`.

    Raises:
        ConfigError: no file, no JSON, another format, or a field of a wrong type; the message says where.
    """
    remedy = "`omnireuse compare --fresh` writes such a file"
    return read_record(Comparison, path, HEAD, what="comparison", remedy=remedy)


def environment(**more: str) -> dict[str, str]:
    """Versions and hardware that seconds and figures depend on."""
    import torch

    found = {"omnireuse": omnireuse.__version__, "python": platform.python_version()}
    for name in ("torch", "diffusers", "transformers", "cache-dit"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    found["processor"] = f"{platform.machine()}, {cpu_count()} cores, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return {**found, **more}
