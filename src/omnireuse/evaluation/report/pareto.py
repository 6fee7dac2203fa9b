"""The record of a comparison with peers: methods over their settings, each a point of quality against compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from omnireuse.errors import ConfigError
from omnireuse.evaluation.report.document import read_document, write_document

__all__ = ["FAMILIES", "Case", "Full", "Mean", "Pareto", "Point", "Spread", "read_pareto", "write_pareto"]

HEAD = {"format": 1, "kind": "pareto"}
FAMILIES = ("ours", "peer", "floor")


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over prompts with its bootstrap interval of 95 %."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A median over prompts with the lowest and the highest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """One method at one of its settings.

    Attributes:
        method: what people call it.
        family: "ours", "peer" (another library's cache) or "floor" (fewer steps, no cache at all).
        settings: what was set.
        computed_steps: share of the denoiser's blocks that really ran, times the steps of the full run.
        psnr: dB to the full run from the same noise, each prompt counted as 100 at most.
        each: PSNR of each prompt.
        ssim: structural similarity to the full run.
        attributes: share of what the prompts ask that a checker found; None where nothing checks.
        speedup: wall-clock of the full run over its own, prompt by prompt; None where it was not timed.
        loop_speedup: the same of the denoising loop alone, without encoding prompts and decoding latents.
        retained_bytes: the most that was kept between steps; None where it is not known.
        call: the call as a person would write it.
        error: why there are no figures; None where there are.
    """

    method: str
    family: str
    settings: dict[str, str | float | int | bool | None]
    computed_steps: float | None = None
    psnr: Mean | None = None
    each: tuple[float, ...] = ()
    ssim: Mean | None = None
    attributes: Mean | None = None
    speedup: Spread | None = None
    loop_speedup: Spread | None = None
    retained_bytes: int | None = None
    call: str
    error: str | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError(f"Point(family={self.family!r}): family must be {', '.join(map(repr, FAMILIES))}")
        if (self.error is None) != (self.psnr is not None and self.computed_steps is not None):
            raise ConfigError(f"Point(method={self.method!r}): must hold either an error or its figures")


@dataclass(frozen=True, kw_only=True)
class Full:
    """What everything is held against.

    Attributes:
        seconds: wall-clock of one generation; None where nothing was timed.
        attributes: share of what the prompts ask that a checker found; None where nothing checks.
    """

    seconds: Spread | None = None
    attributes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pipeline at one number of steps and one guidance.

    Attributes:
        pipeline: its name.
        steps: of the full run.
        guidance: classifier-free guidance; 1 is none.
        prompts: in the order of every point's `each`.
        points: one a method and setting, in the order they were measured.
        targets: answers to the questions of `evaluation.compare.front.targets`, by name; None where they have none.
    """

    pipeline: str
    steps: int
    guidance: float
    prompts: tuple[str, ...]
    full: Full
    points: tuple[Point, ...]
    targets: dict[str, float | None] = field(default_factory=dict)

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
        """As a heading has it."""
        guided = f"guidance {self.guidance:g}" if self.guidance > 1.0 else "no guidance"
        return f"{self.pipeline}, {self.steps} steps, {guided}"


@dataclass(frozen=True, kw_only=True)
class Pareto:
    """A whole comparison.

    Attributes:
        command: what made it.
        created: date and time, ISO 8601.
        environment: versions and hardware.
        complete: False where it was interrupted and holds the methods that were measured until then.
        cases: at least one.
    """

    command: str
    created: str
    environment: dict[str, str]
    complete: bool
    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        if not self.cases:
            raise ConfigError("Pareto(cases): cases must hold at least one")


def write_pareto(pareto: Pareto, path: Path) -> None:
    """Write `pareto` as strict JSON, whole or not at all."""
    write_document(pareto, path, HEAD)


def read_pareto(path: Path) -> Pareto:
    """Read what `write_pareto` wrote.

    Raises:
        ConfigError: no file, no JSON, another format, or a field of a wrong type; the message says where.
    """
    return read_document(Pareto, path, HEAD, what="comparison", writer="omnireuse compare")
