"""The record of a comparison: cases, and in each the points of quality against compute that methods reach."""

from __future__ import annotations

import json
import math
import platform
from importlib.metadata import PackageNotFoundError, version
from inspect import cleandoc
from os import cpu_count
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

import omnireuse
from omnireuse.base.records import Record, as_text, read_record, write_text
from omnireuse.errors import ConfigError
from omnireuse.pipelines.closeness import Mean, Spread

__all__ = [
    "FAMILIES",
    "Case",
    "Comparison",
    "FullRun",
    "Point",
    "Sample",
    "StepDecision",
    "environment",
    "json_schema",
    "read_comparison",
    "write_comparison",
]

HEAD = {"format": 2, "kind": "comparison"}
FAMILIES = ("ours", "peer", "baseline")
Settings: TypeAlias = "dict[str, str | float | int | bool | None]"


def _check_image(owner: Record, name: str, image: str) -> None:
    if Path(image).is_absolute() or ".." in Path(image).parts:
        raise ConfigError(f"{type(owner).__name__}({name}={image!r}): {name} must lie in the folder of the record")


class StepDecision(Record, frozen=True, kw_only=True):
    """One decision of a run, as a strip shows it; the fields are those of `omnireuse.Decision`."""

    branch: str
    step: int
    reused: bool
    reason: str
    drift: float | None = None
    error: float | None = None


class Sample(Record, frozen=True, kw_only=True):
    """One picture of one prompt.

    Attributes:
        image: file name, relative to the record.
        seconds: wall-clock of the generation, warm.
        computed_steps: a fraction where a step was computed in part.
        psnr: dB to the picture of the full run, at most 100.
        ssim: structural similarity to the same.
        attributes: whether the picture shows each attribute of its prompt; None where nothing checks.
        decisions: of the run, in order.
    """

    image: str
    seconds: float
    computed_steps: float
    psnr: float
    ssim: float
    attributes: dict[str, bool] | None = None
    decisions: tuple[StepDecision, ...] = ()

    def __post_init__(self) -> None:
        _check_image(self, "image", self.image)
        if not self.seconds > 0.0:
            raise ConfigError(f"Sample(seconds={self.seconds}): seconds must be above 0")

    @property
    def whole_steps(self) -> int:
        """`computed_steps` rounded up: the steps of a plain run that costs as much.

        A cache that reads its signal inside of the first block runs a little more than the steps it computes; up to a
        twentieth of a step is left out.
        """
        return math.ceil(self.computed_steps - 0.05)

    def lost(self, full: Sample) -> tuple[str, ...]:
        """Attributes of the prompt that the picture of `full` shows and this one does not."""
        there = full.attributes or {}
        return tuple(name for name, held in (self.attributes or {}).items() if not held and there.get(name, True))


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
        attributes: share of the prompts' attributes that a checker found; None where nothing checks.
        scores: of `evaluation.scores`, by name; None where one could not be loaded.
        speedup: wall-clock of the full run over its own, prompt by prompt; None where it was not timed.
        loop_speedup: the same of the denoising loop alone, without encoding prompts and decoding latents.
        seconds: its own wall-clock; None where it was not timed.
        peak_bytes: the most that CUDA had allocated while it was timed; None without CUDA.
        kept_bytes: the most that was kept between steps; None where it is not known.
        call: the call as a person would write it.
        error: why there are no figures; None where there are.
        label: name of this setting for people, where the name of the method does not suffice.
        samples: one for each prompt where pictures were kept.
        worst: file name, relative to the record, of the full run's picture beside its own, at the prompt where they
            differ most; empty where it was not kept.
    """

    method: str
    family: str
    settings: Settings
    computed_steps: float | None = None
    psnr: Mean | None = None
    each: tuple[float, ...] = ()
    ssim: Mean | None = None
    attributes: Mean | None = None
    scores: dict[str, Mean | None] = msgspec.field(default_factory=dict)
    speedup: Spread | None = None
    loop_speedup: Spread | None = None
    seconds: Spread | None = None
    peak_bytes: int | None = None
    kept_bytes: int | None = None
    call: str
    error: str | None = None
    label: str = ""
    samples: tuple[Sample, ...] = ()
    worst: str = ""

    def __post_init__(self) -> None:
        _check_image(self, "worst", self.worst)
        if self.family not in FAMILIES:
            raise ConfigError(f"Point(family={self.family!r}): family must be {', '.join(map(repr, FAMILIES))}")
        if (self.error is None) != (self.psnr is not None and self.computed_steps is not None):
            raise ConfigError(f"Point(method={self.method!r}): must hold either an error or its figures")

    @property
    def title(self) -> str:
        """`label`, or the name of the method."""
        return self.label or self.method


class FullRun(Record, frozen=True, kw_only=True):
    """The reference of all comparisons.

    Attributes:
        seconds: wall-clock of one generation; None where nothing was timed.
        attributes: share of the prompts' attributes that a checker found; None where nothing checks.
        scores, peak_bytes: as in `Point`.
        samples: one for each prompt where pictures were kept.
    """

    seconds: Spread | None = None
    attributes: float | None = None
    scores: dict[str, Mean | None] = msgspec.field(default_factory=dict)
    peak_bytes: int | None = None
    samples: tuple[Sample, ...] = ()


class Case(Record, frozen=True, kw_only=True):
    """One pipeline at one number of steps and one guidance.

    Attributes:
        pipeline: its name.
        steps: of the full run.
        guidance: classifier-free guidance; 1 is none.
        prompts: in the order of every point's `each`.
        seed: of the first prompt's noise; the others count on from it.
        points: one for each method and setting, in the order they were measured.
        targets: answers to the questions of `evaluation.front.targets`, by name; None where they have none.
        highlight: place of the point that the page is about, where pictures were kept.
    """

    pipeline: str
    steps: int
    guidance: float
    prompts: tuple[str, ...]
    seed: int = 0
    full: FullRun
    points: tuple[Point, ...]
    targets: dict[str, float | None] = msgspec.field(default_factory=dict)
    highlight: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"Case(steps={self.steps}): steps must be at least 1")
        for point in self.points:
            if point.error is None and len(point.each) != len(self.prompts):
                raise ConfigError(
                    f"Case(points): {point.method} must hold one PSNR for each of {len(self.prompts)} prompts, "
                    f"got {len(point.each)}"
                )
        if not self.full.samples:
            return
        if not 0 <= self.highlight < len(self.points):
            raise ConfigError(f"Case(highlight={self.highlight}): highlight must be the place of a point")
        rows = [self.full.samples, *(point.samples for point in self.points)]
        if any(len(row) != len(self.prompts) for row in rows):
            raise ConfigError(f"Case(points): every point must hold {len(self.prompts)} samples, as the full run does")
        samples = [sample for row in rows for sample in row]
        places = (place for sample in samples for place in (sample.computed_steps, *_steps(sample)))
        # No solver calls a model ten times in one step.
        if not all(0 <= place < 10 * self.steps for place in places):
            raise ConfigError(f"Case(points): decisions and computed_steps must fit a run of {self.steps} steps")

    @property
    def name(self) -> str:
        """The case as a heading names it."""
        guided = f"guidance {self.guidance:g}" if self.guidance > 1.0 else "no guidance"
        return f"{self.pipeline}, {self.steps} steps, {guided}"

    def baseline_of(self, cache: Point) -> Point | None:
        """The run of fewer steps that costs as much as `cache` for every prompt; None where there is none."""
        steps = [sample.whole_steps for sample in cache.samples]
        if cache.family == "baseline" or not steps:
            return None
        plain = (point for point in self.points if point.family == "baseline")
        return next((each for each in plain if [sample.whole_steps for sample in each.samples] == steps), None)

    def gain(self, cache: Point) -> float | None:
        """PSNR of `cache` above its baseline in dB; None without a baseline."""
        baseline = self.baseline_of(cache)
        if baseline is None or baseline.psnr is None or cache.psnr is None:
            return None
        return cache.psnr.mean - baseline.psnr.mean


class Comparison(Record, frozen=True, kw_only=True):
    """A whole comparison.

    Attributes:
        command: its maker.
        created: date and time, ISO 8601.
        environment: versions and hardware.
        complete: False where it was interrupted.
        cases: at least one.
    """

    command: str
    created: str
    environment: dict[str, str]
    complete: bool
    cases: tuple[Case, ...]

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
    remedy = "`omnireuse compare` writes such a file"
    return read_record(Comparison, path, HEAD, what="comparison", remedy=remedy)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of files by `write_comparison`."""
    schema = json.loads(msgspec.json.encode(msgspec.json.schema(Comparison)))
    for definition in schema["$defs"].values():
        # Python 3.13 takes the indentation of docstrings away, older ones do not.
        definition["description"] = cleandoc(definition["description"])
    comparison = schema["$defs"]["Comparison"]
    comparison["properties"] = {**{name: {"const": value} for name, value in HEAD.items()}, **comparison["properties"]}
    comparison["required"] = [*HEAD, *comparison["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


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


def _steps(sample: Sample) -> list[int]:
    return [decision.step for decision in sample.decisions]
