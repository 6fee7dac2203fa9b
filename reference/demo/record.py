"""The record of the demo: a comparison, and the pictures and decisions of each run."""

from __future__ import annotations

import math
from pathlib import Path

from omnireuse.base.records import Record, as_text, read_record, write_text
from omnireuse.errors import ConfigError
from omnireuse_lab.record import Case, Comparison, Point

__all__ = ["Demo", "Sample", "StepDecision", "read_demo", "write_demo"]

HEAD = {"format": 1, "kind": "demo"}


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
        attributes: whether the picture shows each attribute of its prompt.
        decisions: of the run, in order.
    """

    image: str
    seconds: float
    computed_steps: float
    psnr: float
    ssim: float
    attributes: dict[str, bool]
    decisions: tuple[StepDecision, ...] = ()

    def __post_init__(self) -> None:
        if Path(self.image).is_absolute() or ".." in Path(self.image).parts:
            raise ConfigError(f"Sample(image={self.image!r}): image must lie in the folder of the record")

    @property
    def whole_steps(self) -> int:
        """`computed_steps` rounded up: the steps of a plain run that costs as much."""
        return math.ceil(self.computed_steps - 1e-6)

    def lost(self, full: Sample) -> tuple[str, ...]:
        """Attributes of the prompt that the picture of `full` shows and this one does not."""
        return tuple(name for name, held in self.attributes.items() if not held and full.attributes[name])


class Demo(Record, frozen=True, kw_only=True):
    """A demo.

    Attributes:
        comparison: of one case; the page is about its first point.
        full: one sample for each prompt, of the full run.
        samples: the same for each point of the case.
    """

    comparison: Comparison
    full: tuple[Sample, ...]
    samples: tuple[tuple[Sample, ...], ...]

    def __post_init__(self) -> None:
        if len(self.comparison.cases) != 1 or len(self.samples) != len(self.case.points):
            raise ConfigError("Demo(samples): samples must have a row for each point of one case")
        if any(len(row) != len(self.case.prompts) for row in (self.full, *self.samples)):
            raise ConfigError(
                f"Demo(samples): every row must hold {len(self.case.prompts)} samples, one for each prompt"
            )

    @property
    def case(self) -> Case:
        """The case of the comparison."""
        return self.comparison.cases[0]

    def baseline_of(self, place: int) -> int | None:
        """The place of the run of fewer steps that costs as much as a cache for every prompt; None where there is
        none."""
        points, steps = self.case.points, _steps(self.samples[place])
        if points[place].family == "baseline":
            return None
        plain = (other for other, point in enumerate(points) if point.family == "baseline")
        return next((other for other in plain if _steps(self.samples[other]) == steps), None)

    @property
    def gains(self) -> dict[int, float]:
        """PSNR in dB above as many plain steps, by the place of each cache that has such a baseline."""
        found = ((place, self.baseline_of(place)) for place in range(len(self.samples)))
        points = self.case.points
        return {cache: _psnr(points[cache]) - _psnr(points[plain]) for cache, plain in found if plain is not None}


def _steps(samples: tuple[Sample, ...]) -> list[int]:
    return [sample.whole_steps for sample in samples]


def _psnr(point: Point) -> float:
    assert point.psnr is not None
    return point.psnr.mean


def write_demo(demo: Demo, path: Path) -> None:
    """Write the record as JSON, whole or not at all."""
    write_text(path, as_text(demo, HEAD))


def read_demo(path: Path) -> Demo:
    """Read a file of `write_demo`.

    Raises:
        ConfigError: no file, no JSON, another format, or a field of a wrong type; the message says where.
    """
    return read_record(Demo, path, HEAD, what="demo", remedy="`python -m reference demo` writes such a file")
