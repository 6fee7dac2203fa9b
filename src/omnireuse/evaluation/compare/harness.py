"""Run a method at one of its settings on a workload, and compare it with the workload's full run."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from omnireuse.errors import OmniReuseError, StateError
from omnireuse.evaluation.compare.count import Work
from omnireuse.evaluation.compare.methods.base import Method, Setting, unchanged
from omnireuse.evaluation.compare.restore import restored
from omnireuse.evaluation.compare.workload import Workload
from omnireuse.evaluation.front import targets
from omnireuse.evaluation.metrics import Mean, bootstrap, capped_psnr, spread, ssim
from omnireuse.evaluation.record import Case, FullRun, Point
from omnireuse.pipelines.pictures import Picture

__all__ = ["Harness", "Measured", "compare", "settings_of"]

logger = logging.getLogger("omnireuse")
PROBE_STEPS = 3
"""Steps of the short run that must give equal bits after every setting."""
TURNS = 3
"""Runs of each prompt that is timed. The fastest counts, because whatever else runs only adds time."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What some runs gave.

    Attributes:
        pictures: one for each prompt.
        seconds, loop_seconds: wall-clock of the last call, and of its loop: from the denoiser's first call to the end
            of the last step. They are equal where the pipeline does not report its steps.
        flops: executed by the blocks, for all prompts together.
        calls: of the denoiser.
        kept_bytes: the most that was kept between steps, for one sample.
    """

    pictures: tuple[Picture, ...]
    seconds: float
    loop_seconds: float
    flops: float
    calls: int
    kept_bytes: int


class Harness:
    """Measures settings on one workload, one after the other, each on the pipeline as it was.

    A context manager: work is counted inside of it.

    Args:
        workload: what to run.

    Attributes:
        full: pictures and work of the full run, of all prompts.
        flops: of the full run of one prompt.
        calls_per_step: calls of the denoiser in a step: 2 where branches come one after the other.

    Raises:
        StateError: a full run that is not finite or whose work cannot be counted.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.numbers = range(len(workload.prompts))

    def __enter__(self) -> Harness:
        workload = self.workload
        self._work = Work(workload.pipeline)
        try:
            self.full = self.run(None, self.numbers, strict=True)
            if not all(np.isfinite(picture).all() for picture in self.full.pictures):
                raise StateError(f"{workload.name}: the full run is not finite; nothing can be compared with it")
            one = self.run(None, [0])
            if not one.flops:
                raise StateError(f"{workload.name}: no block of its denoiser runs, so its work cannot be counted")
            self.flops, self.calls_per_step = one.flops, round(one.calls / workload.steps)
            self._probe = workload.pictures([0], PROBE_STEPS)[0]
        except BaseException:
            self._work.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._work.close()

    def run(
        self, setting: Setting | None, numbers: Sequence[int], *, strict: bool = False, watch: bool = False
    ) -> Measured:
        """Run these prompts with a setting; None is the full run. The pipeline is restored afterwards.

        Args:
            strict: as for `Workload.pictures`.
            watch: read what is kept after every step of the first call, which takes time.
        """
        workload, work = self.workload, self._work
        steps = workload.steps if setting is None or setting.steps is None else setting.steps
        size = 1 if setting is not None and setting.alone else workload.batch_size
        kept, ended = 0, math.nan
        made: list[Picture] = []
        with ExitStack() as stack:
            if setting is not None:
                stack.enter_context(restored(workload.pipeline))
            kept_now = stack.enter_context((unchanged if setting is None else setting.enable)(workload.pipeline))

            def after_step(_: Any, __: int, ___: Any, given: dict[str, Any]) -> dict[str, Any]:
                nonlocal kept, ended
                ended = time.perf_counter()
                if watch and not made:
                    kept = max(kept, kept_now() or 0)
                return given

            extra = {"callback_on_step_end": after_step} if workload.accepts("callback_on_step_end") else {}
            # What a method does once, such as a calibration, is no part of a run.
            work.reset()
            for start in range(0, len(numbers), size):
                work.began = None
                begun = time.perf_counter()
                made += workload.pictures(numbers[start : start + size], steps, strict=strict, **extra)
                seconds = time.perf_counter() - begun
            kept = max(kept, kept_now() or 0)
        known = work.began is not None and not math.isnan(ended)
        return Measured(
            pictures=tuple(made),
            seconds=seconds,
            loop_seconds=ended - (work.began or 0.0) if known else seconds,
            flops=work.flops,
            calls=work.calls,
            kept_bytes=kept // min(size, len(numbers)),
        )

    def check_restored(self, method: Method, setting: Setting) -> None:
        """Run the pipeline shortly.

        Raises:
            StateError: it does not give what it gave before.
        """
        if not np.array_equal(self.workload.pictures([0], PROBE_STEPS)[0], self._probe):
            raise StateError(
                f"{method.name} ({setting.call}) left the pipeline changed; nothing after it can be judged"
            )

    def computed_steps(self, measured: Measured) -> float:
        """The work of a run as steps of the full run, mean over the prompts."""
        return measured.flops / (len(measured.pictures) * self.flops) * self.workload.steps

    def attributes(self, made: Sequence[Picture]) -> Mean | None:
        """Share of the attributes that the pictures of all prompts show; None where nothing checks."""
        checks = self.workload.checks
        if not checks:
            return None
        return bootstrap([statistics.fmean(check(one).values()) for check, one in zip(checks, made, strict=True)])

    def point(self, method: Method, setting: Setting) -> Point:
        """The figures of a setting, or its error."""
        try:
            measured = self.run(setting, self.numbers, watch=True)
            pairs = list(zip(measured.pictures, self.full.pictures, strict=True))
            each = [capped_psnr(picture, full) for picture, full in pairs]
            point = Point(
                method=method.name,
                family=method.family,
                settings=dict(setting.settings),
                computed_steps=self.computed_steps(measured),
                psnr=bootstrap(each),
                each=tuple(each),
                ssim=bootstrap([ssim(one, full) if np.isfinite(one).all() else 0.0 for one, full in pairs]),
                attributes=self.attributes(measured.pictures),
                kept_bytes=measured.kept_bytes,
                call=setting.call,
            )
        except Exception as error:
            point = self.failed(method, error, setting)
        self.check_restored(method, setting)
        return point

    def failed(self, method: Method, error: Exception, setting: Setting | None = None) -> Point:
        """The point of a method that gave no figures."""
        logger.warning("%s: %s failed: %s", self.workload.name, method.name, error)
        text = str(error) if isinstance(error, OmniReuseError) else f"{type(error).__name__}: {error}"
        settings, call = ({}, method.name) if setting is None else (dict(setting.settings), setting.call)
        return Point(method=method.name, family=method.family, settings=settings, call=call, error=text)

    def timed(self, point: Point, setting: Setting, prompts: int) -> tuple[Point, list[float]]:
        """The point with its speed-up, and seconds of the full run: both take turns on each of so many prompts."""
        seconds: list[float] = []
        ratios: list[tuple[float, float]] = []
        for number in (0, *self.numbers[:prompts]):
            pairs = [(self.run(None, [number]), self.run(setting, [number])) for _ in range(TURNS)]
            full, own = (
                (min(m.seconds for m in runs), min(m.loop_seconds for m in runs)) for runs in zip(*pairs, strict=True)
            )
            seconds.append(full[0])
            ratios.append((full[0] / own[0], full[1] / own[1]))
        # The first turns only warm up.
        whole, loop = zip(*ratios[1:], strict=True)
        return replace(point, speedup=spread(whole), loop_speedup=spread(loop)), seconds[1:]

    def case(self, points: Iterable[Point], seconds: Sequence[float] = ()) -> Case:
        """The record of these points."""
        workload, attributes = self.workload, self.attributes(self.full.pictures)
        full = FullRun(
            seconds=spread(seconds) if seconds else None, attributes=None if attributes is None else attributes.mean
        )
        case = Case(
            pipeline=workload.name,
            steps=workload.steps,
            guidance=workload.guidance,
            prompts=workload.prompts,
            seed=workload.seed,
            full=full,
            points=tuple(points),
        )
        return replace(case, targets=targets(case))


def settings_of(methods: Iterable[Method], harness: Harness) -> Iterator[tuple[Method, Setting | Exception]]:
    """Every method with each of its settings, or with its error where it cannot serve the workload at all."""
    for method in methods:
        try:
            yield from [(method, setting) for setting in method.grid(harness)]
        except (OmniReuseError, ImportError) as error:
            yield method, error


def compare(
    workload: Workload,
    methods: Sequence[Method],
    *,
    timed: int = 0,
    advance: Callable[[str, int, int], None] = lambda *_: None,
    save: Callable[[Case], None] = lambda _: None,
) -> Case:
    """Measure every method on the workload.

    Args:
        timed: prompts for the wall-clock, one setting of each method; 0 leaves it out.
        advance: called with what runs now, how many settings are done and how many there are.
        save: called with the case so far after every setting.

    Raises:
        StateError: the pipeline could not be restored.
        KeyboardInterrupt: as it came; `save` has had all that was measured.
    """
    advance("full run", 0, 0)
    with Harness(workload) as harness:
        points: list[Point] = []
        left = list(settings_of(methods, harness))
        for number, (method, setting) in enumerate(left):
            advance(method.name, number, len(left))
            if isinstance(setting, Setting):
                points.append(harness.point(method, setting))
            else:
                points.append(harness.failed(method, setting))
            save(harness.case(points))
        seconds: list[float] = []
        for number in _nearest_to_half(points, workload.steps) if timed else ():
            setting = left[number][1]
            assert isinstance(setting, Setting), "a point with figures comes from a setting"
            advance(f"timing {points[number].method}", len(left), len(left))
            points[number], took = harness.timed(points[number], setting, timed)
            seconds += took
        case = harness.case(points, seconds)
        save(case)
        return case


def _nearest_to_half(points: Sequence[Point], steps: int) -> list[int]:
    """For each method with figures, the place of the point whose computed steps are closest to half of all."""
    best: dict[str, tuple[float, int]] = {}
    for number, point in enumerate(points):
        if point.computed_steps is not None:
            candidate = (abs(point.computed_steps - steps / 2), number)
            best[point.method] = min(best.get(point.method, candidate), candidate)
    return sorted(number for _, number in best.values())
