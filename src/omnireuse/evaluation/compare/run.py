"""Every method at every setting on one subject, held against the subject's full run."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from omnireuse.errors import OmniReuseError, StateError
from omnireuse.evaluation.compare.count import Work
from omnireuse.evaluation.compare.front import bootstrap, targets
from omnireuse.evaluation.compare.methods import Method, Setting
from omnireuse.evaluation.compare.subject import Picture, Subject
from omnireuse.evaluation.compare.untouched import untouched
from omnireuse.evaluation.metrics import IDENTICAL_DB, psnr, ssim
from omnireuse.evaluation.report.pareto import Case, Full, Mean, Point, Spread

__all__ = ["FullRun", "compare", "settings_of"]

logger = logging.getLogger("omnireuse")
PROBE_STEPS = 3
"""Steps of the short run that must come out bit-equal after every setting."""
TURNS = 3
"""Of full run and method on each prompt that is timed: the fastest counts, because whatever else runs only adds."""


@dataclass(frozen=True, kw_only=True)
class FullRun:
    """What was learnt of the subject's full run.

    Attributes:
        pictures: one a prompt.
        flops: what the blocks execute for one prompt.
        calls_per_step: calls of the denoiser for one step: 2 where branches come one after the other.
    """

    pictures: tuple[Picture, ...]
    flops: float
    calls_per_step: int


def settings_of(methods: Iterable[Method], subject: Subject, full: FullRun) -> list[tuple[Method, Setting | Exception]]:
    """Every method with each of its settings; one that cannot serve the subject at all with its error instead."""
    found: list[tuple[Method, Setting | Exception]] = []
    for method in methods:
        try:
            found.extend((method, setting) for setting in method.grid(subject, full))
        except (OmniReuseError, ImportError) as error:
            found.append((method, error))
    return found


def compare(
    subject: Subject,
    methods: Sequence[Method],
    *,
    timed: int = 0,
    advance: Callable[[str, int, int], None] = lambda *_: None,
    save: Callable[[Case], None] = lambda _: None,
) -> Case:
    """Measure every method on the subject.

    Args:
        timed: prompts for the wall-clock, one setting a method; 0 leaves it out.
        advance: told what is being done, how many settings are done and how many there are.
        save: given the case so far after every setting.

    Raises:
        StateError: the pipeline did not come back as it was.
        KeyboardInterrupt: as it came; `save` has had all that was measured.
    """
    work = Work(subject.pipeline)
    try:
        return _Bench(subject, work).compare(methods, timed, advance, save)
    finally:
        work.close()


class _Bench:
    def __init__(self, subject: Subject, work: Work) -> None:
        self._subject, self._work = subject, work
        self._numbers = range(len(subject.prompts))

    def compare(
        self,
        methods: Sequence[Method],
        timed: int,
        advance: Callable[[str, int, int], None],
        save: Callable[[Case], None],
    ) -> Case:
        advance("full run", 0, 0)
        self._full = self._run_in_full()
        self._probe = self._subject.pictures([0], PROBE_STEPS)[0]
        self._full_attributes = self._attributes(self._full.pictures)
        seconds = None
        points: list[Point] = []
        left = settings_of(methods, self._subject, self._full)
        for number, (method, setting) in enumerate(left):
            advance(method.name, number, len(left))
            points.append(self._point(method, setting))
            save(self._case(points, seconds))
        if timed:
            points, seconds = self._timed(points, left, timed, advance)
        case = self._case(points, seconds)
        save(case)
        return case

    def _run_in_full(self) -> FullRun:
        pictures = self._batches(self._subject.steps, strict=True)
        self._work.reset()
        self._subject.pictures([0], self._subject.steps)
        if not self._work.flops:
            raise StateError(f"{self._subject.name}: nothing runs in its denoiser's blocks, so nothing can be counted")
        if not all(np.isfinite(picture).all() for picture in pictures):
            raise StateError(f"{self._subject.name}: the full run is not finite; nothing can be held against it")
        calls = round(self._work.calls / self._subject.steps)
        return FullRun(pictures=tuple(pictures), flops=self._work.flops, calls_per_step=calls)

    def _batches(
        self, steps: int, *, alone: bool = False, strict: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Picture]:
        """All pictures; `watch` is called after every step of the first batch, where the pipeline tells its steps."""
        size = 1 if alone else self._subject.batch_size
        made: list[Picture] = []
        for start in range(0, len(self._numbers), size):
            extra: dict[str, Any] = {}
            if watch is not None and start == 0 and self._subject.accepts("callback_on_step_end"):

                def after_step(_: Any, __: int, ___: Any, given: dict[str, Any]) -> dict[str, Any]:
                    watch()
                    return given

                extra["callback_on_step_end"] = after_step
            made.extend(self._subject.pictures(self._numbers[start : start + size], steps, strict=strict, **extra))
        return made

    def _point(self, method: Method, setting: Setting | Exception) -> Point:
        if isinstance(setting, Exception):
            return self._failed(method, {}, method.name, setting)
        try:
            with untouched(self._subject.pipeline):
                point = self._measure(method, setting)
        except Exception as error:
            point = self._failed(method, setting.settings, setting.call, error)
        if not np.array_equal(self._subject.pictures([0], PROBE_STEPS)[0], self._probe):
            raise StateError(
                f"{method.name} ({setting.call}) left the pipeline changed; nothing after it can be judged"
            )
        return point

    def _failed(self, method: Method, settings: Any, call: str, error: Exception) -> Point:
        logger.warning("%s: %s failed: %s", self._subject.name, method.name, error)
        text = str(error) if isinstance(error, OmniReuseError) else f"{type(error).__name__}: {error}"
        return Point(method=method.name, family=method.family, settings=dict(settings), call=call, error=text)

    def _measure(self, method: Method, setting: Setting) -> Point:
        subject, kept = self._subject, 0
        self._work.reset()
        with setting.enable(subject.pipeline) as kept_now:

            def watch() -> None:
                nonlocal kept
                kept = max(kept, kept_now() or 0)

            # What a method learns on its first prompt, such as a calibration, is not part of a run.
            self._work.reset()
            made = self._batches(setting.steps or subject.steps, alone=setting.alone, watch=watch)
            watch()
        prompts = len(made)
        each = [_psnr(picture, full) for picture, full in zip(made, self._full.pictures, strict=True)]
        similar = [_ssim(picture, full) for picture, full in zip(made, self._full.pictures, strict=True)]
        return Point(
            method=method.name,
            family=method.family,
            settings=dict(setting.settings),
            computed_steps=self._work.flops / (prompts * self._full.flops) * subject.steps,
            psnr=bootstrap(each),
            each=tuple(each),
            ssim=bootstrap(similar),
            attributes=self._attributes(made),
            retained_bytes=kept // (1 if setting.alone else min(subject.batch_size, prompts)),
            call=setting.call,
        )

    def _attributes(self, made: Sequence[Picture]) -> Mean | None:
        checks = self._subject.checks
        if not checks:
            return None
        return bootstrap(
            [statistics.fmean(map(float, check(picture).values())) for check, picture in zip(checks, made, strict=True)]
        )

    def _case(self, points: Sequence[Point], seconds: Spread | None) -> Case:
        subject, attributes = self._subject, self._full_attributes
        case = Case(
            pipeline=subject.name,
            steps=subject.steps,
            guidance=subject.guidance,
            prompts=subject.prompts,
            full=Full(seconds=seconds, attributes=None if attributes is None else attributes.mean),
            points=tuple(points),
        )
        return replace(case, targets=targets(case))

    def _timed(
        self,
        points: list[Point],
        left: Sequence[tuple[Method, Setting | Exception]],
        timed: int,
        advance: Callable[[str, int, int], None],
    ) -> tuple[list[Point], Spread]:
        """The points again, one of each method with its wall-clock: full run and method take turns on each prompt."""
        seconds: list[float] = []
        own_steps = self._subject.steps
        for number in _nearest_to_half(points, self._subject.steps):
            setting = left[number][1]
            assert isinstance(setting, Setting)
            advance(f"timing {points[number].method}", len(left), len(left))
            ratios: list[tuple[float, float]] = []
            for prompt in range(-1, min(timed, len(self._numbers))):
                full, own = (math.inf, math.inf), (math.inf, math.inf)
                for _ in range(TURNS):
                    full = _fastest(full, self._seconds(max(prompt, 0), own_steps))
                    with untouched(self._subject.pipeline), setting.enable(self._subject.pipeline):
                        own = _fastest(own, self._seconds(max(prompt, 0), setting.steps or own_steps))
                # The first turns only warm up.
                if prompt >= 0:
                    seconds.append(full[0])
                    ratios.append((full[0] / own[0], full[1] / own[1]))
            whole, loop = zip(*ratios, strict=True)
            points[number] = replace(points[number], speedup=_spread(whole), loop_speedup=_spread(loop))
        return points, _spread(seconds)

    def _seconds(self, prompt: int, steps: int) -> tuple[float, float]:
        """Wall-clock of one call, and of its loop: from the denoiser's first call to the end of the last step."""
        ended = math.nan

        def after_step(_: Any, __: int, ___: Any, given: dict[str, Any]) -> dict[str, Any]:
            nonlocal ended
            ended = time.perf_counter()
            return given

        told: dict[str, Any] = {}
        if self._subject.accepts("callback_on_step_end"):
            told["callback_on_step_end"] = after_step
        self._work.reset()
        start = time.perf_counter()
        self._subject.pictures([prompt], steps, **told)
        whole = time.perf_counter() - start
        began = self._work.began
        # Where nobody tells the steps, the call is all that is known.
        return whole, whole if began is None or math.isnan(ended) else ended - began


def _nearest_to_half(points: Sequence[Point], steps: int) -> list[int]:
    """Of every method that has figures, the number of the point whose computed steps come closest to half of all."""
    best: dict[str, tuple[float, int]] = {}
    for number, point in enumerate(points):
        if point.computed_steps is not None:
            candidate = (abs(point.computed_steps - steps / 2), number)
            best[point.method] = min(best.get(point.method, candidate), candidate)
    return sorted(number for _, number in best.values())


def _fastest(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), min(one[1], other[1])


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


def _psnr(picture: Picture, full: Picture) -> float:
    """At most `IDENTICAL_DB`; 0 where the picture is not finite."""
    return min(psnr(picture, full), IDENTICAL_DB) if np.isfinite(picture).all() else 0.0


def _ssim(picture: Picture, full: Picture) -> float:
    return ssim(picture, full) if np.isfinite(picture).all() else 0.0
