"""Run a method at one of its settings on a workload, and compare it with the workload's full run."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec.structs import replace

import omnireuse
from omnireuse.base.records import Record
from omnireuse.errors import ConfigError, OmniReuseError, StateError
from omnireuse.hooks.denoisers import describe
from omnireuse.pipelines import Picture, capped_psnr
from omnireuse_lab.closeness import bootstrap, spread, ssim
from omnireuse_lab.compare.count import Work, now
from omnireuse_lab.compare.journal import Journal
from omnireuse_lab.compare.methods.base import Kept, Method, Setting, unchanged
from omnireuse_lab.compare.restore import restored
from omnireuse_lab.compare.workload import Workload, call_text
from omnireuse_lab.record import Case, Point, Reference, environment
from omnireuse_lab.report.clips import save_pair

__all__ = ["Harness", "MeasuredRun", "Turn"]

logger = logging.getLogger("omnireuse")

if TYPE_CHECKING:
    from typing_extensions import Self


PROBE_STEPS = 3
"""Steps of the short run that must give equal bits after every setting."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """What one call of the pipeline gave.

    Attributes:
        picture: of the prompt.
        seconds: wall-clock of the call.
        flops: executed by the blocks; 0 if time was measured.
        calls: of the denoiser.
        kept_bytes: the most that was kept between steps.
        peak_bytes: the most that CUDA had allocated; None without CUDA.
    """

    picture: Picture
    seconds: float
    flops: float
    kept_bytes: int
    peak_bytes: int | None


SAME_DB = 60.0
"""PSNR at which the short runs of two processes count as those of one pipeline."""
TURNS = 3
"""Runs of each prompt that is timed. The fastest counts, because whatever else runs only adds time."""


class _Row(Record, frozen=True, kw_only=True):
    """The figures of one picture, as in `Point`."""

    psnr: float
    ssim: float
    scores: dict[str, float]
    flops: float
    kept_bytes: int


class Turn(Record, frozen=True, kw_only=True):
    """The fastest of some runs of one prompt."""

    seconds: float
    peak_bytes: int | None


class Harness:
    """Measures settings on one workload, and compares them with its full run.

    Args:
        workload: its runs.
        journal: its figures are not measured again.

    Attributes:
        probe: a picture of the first prompt in few steps.
        seconds: of the full run of one prompt, as a few steps let expect, with the counting of its work.
        calls_per_step: calls of the denoiser in a step: 2 if branches come one after the other.
        full: pictures of the full run, once it is measured.
        flops: of the full run of one prompt, once it is measured.

    Raises:
        ConfigError: a journal that was made with another pipeline or other arguments.
        StateError: a pipeline whose work cannot be counted; in `measure_full`, a full run that is not finite.
    """

    def __init__(self, workload: Workload, *, journal: Journal | None = None) -> None:
        self.workload = workload
        self._journal = journal or Journal()
        self.full: list[Picture] = []

    def __enter__(self) -> Self:
        self._work = Work(self.workload.pipeline)
        try:
            self._probe()
        except BaseException:
            self._work.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._work.close()

    def _probe(self) -> None:
        workload, journal, stamps = self.workload, self._journal, [now()]

        def after_step(*given: Any) -> dict[str, Any]:
            stamps.append(now())
            return dict(given[-1])

        extra = {"callback_on_step_end": after_step} if workload.accepts("callback_on_step_end") else {}
        self.probe = workload.pictures([0], PROBE_STEPS, strict=True, **extra)[0]
        whole = now() - stamps[0]
        # The first step has also what is done once, such as encoding the prompt.
        step = stamps[-1] - stamps[-2] if len(stamps) > PROBE_STEPS else whole / PROBE_STEPS
        self.seconds = whole + (workload.steps - PROBE_STEPS) * step
        self.calls_per_step = round(self._work.calls / PROBE_STEPS)
        if not self._work.flops:
            raise StateError(f"{workload.name}: no block of its denoiser runs, so its work cannot be counted")
        self._work.reset(calls_alone=True)
        self._part = f"{workload.name}, {workload.steps} steps, guidance {workload.guidance:g}"
        if journal.path is not None:
            journal.check_setup(self._part, self._setup())
        earlier = journal.find_picture(self._part, "probe", 0)
        if earlier is not None and capped_psnr(self.probe, earlier) < SAME_DB:
            raise ConfigError(
                f"journal({self._part}): must be of this pipeline, got other pictures; choose another --out"
            )
        journal.add_picture(self._part, "probe", 0, self.probe)

    def measure_full(self, advance: Callable[[int], None] = lambda _: None) -> None:
        """Measure the full run of every prompt; `advance` is told after each how many there are."""
        self._full_rows = self._rows("full run", None, advance)
        if not all(np.isfinite(picture).all() for picture in self.full):
            raise StateError(f"{self.workload.name}: the full run is not finite; nothing can be compared with it")
        self.flops = self._full_rows[0].flops

    def _setup(self) -> dict[str, str]:
        """Influences on figures beside the setting."""
        workload = self.workload
        return {
            "pipeline": describe(workload.pipeline),
            "call": call_text(workload.call),
            "list of prompts": str(workload.prompts),
            "list of calibration prompts": str(workload.calibration),
            "seed": f"{workload.seed}, {workload.calibration_seed}",
            "set of scores": str(list(workload.scores)),
            "environment": str(environment()),
        }

    def _rows(self, name: str, setting: Setting | None, advance: Callable[[int], None] = lambda _: None) -> list[_Row]:
        """The figures of every prompt; only what the journal lacks is run, and written there one by one.

        The full run fills `full`.
        """
        journal, part, is_full = self._journal, self._part, setting is None
        rows, measure = list[_Row](), None
        with ExitStack() as stack:
            for number in range(len(self.workload.prompts)):
                row = journal.find(part, name, number, _Row)
                if row is None:
                    measure = measure or stack.enter_context(self.enabled(setting))
                    measured = measure(number, strict=is_full, watch=not rows and not is_full)
                    if is_full:
                        self.full.append(measured.picture)
                        journal.add_picture(part, "picture", number, measured.picture)
                    row = self._row(number, measured)
                    journal.add(part, name, number, row)
                    path, is_worst = self._worst(name), all(row.psnr < other.psnr for other in rows)
                    if path is not None and is_worst and not is_full:
                        save_pair(self.full[number], measured.picture, path)
                elif is_full and (picture := journal.find_picture(part, "picture", number)) is not None:
                    self.full.append(picture)
                rows.append(row)
                advance(len(rows))
        return rows

    def _worst(self, name: str) -> Path | None:
        """The file of a setting's picture that differs most, beside the journal."""
        return self._journal.beside(f"{self._part} {name}", "png")

    def _row(self, number: int, measured: MeasuredRun) -> _Row:
        picture, full, prompt = measured.picture, self.full[number], self.workload.prompts[number]
        return _Row(
            psnr=capped_psnr(picture, full),
            ssim=ssim(picture, full) if np.isfinite(picture).all() else 0.0,
            scores={name: score(picture, full, prompt) for name, score in self.workload.scores.items()},
            flops=measured.flops,
            kept_bytes=measured.kept_bytes,
        )

    @contextmanager
    def enabled(self, setting: Setting | None) -> Iterator[Callable[..., MeasuredRun]]:
        """A context that gives `measure` with this setting; None is the full run. Then the pipeline is restored."""
        steps = self.workload.steps if setting is None or setting.steps is None else setting.steps
        with ExitStack() as stack:
            if setting is not None:
                stack.enter_context(restored(self.workload.pipeline))
                # Before that: reuse which a setting has left enabled holds on to what is restored.
                stack.callback(omnireuse.disable, self.workload.pipeline)
            kept_now = stack.enter_context((setting.enable if setting else unchanged)(self.workload.pipeline))
            yield partial(self.measure, steps, kept_now)

    def run(self, setting: Setting | None, number: int, *, timed: bool = False) -> MeasuredRun:
        """Run a prompt with a setting, or in full; as in `measure`."""
        with self.enabled(setting) as measure:
            return measure(number, timed=timed)

    def measure(
        self, steps: int, kept_now: Kept, number: int, *, strict: bool = False, watch: bool = False, timed: bool = False
    ) -> MeasuredRun:
        """Run a prompt with whatever is enabled.

        Args:
            watch: read what is kept after every step, which takes time.
            timed: count no operations, which takes time too.
        """
        work, kept, on_cuda = self._work, 0, torch.cuda.is_initialized()

        def after_step(_: Any, __: int, ___: Any, given: dict[str, Any]) -> dict[str, Any]:
            nonlocal kept
            kept = max(kept, kept_now() or 0)
            return given

        watched = watch and self.workload.accepts("callback_on_step_end")
        extra = {"callback_on_step_end": after_step} if watched else {}
        # What a method does once, such as a calibration, is no part of a run, and is not counted.
        work.reset(calls_alone=timed)
        if on_cuda:
            torch.cuda.reset_peak_memory_stats()
        begun = now()
        (made,) = self.workload.pictures([number], steps, strict=strict, **extra)
        seconds, flops = now() - begun, work.flops
        work.reset(calls_alone=True)
        return MeasuredRun(
            # The order in memory decides the last bits of a mean, and files do not keep every order.
            picture=np.ascontiguousarray(made),
            seconds=seconds,
            flops=flops,
            kept_bytes=max(kept, kept_now() or 0),
            peak_bytes=torch.cuda.max_memory_allocated() if on_cuda else None,
        )

    def check_restored(self, method: Method, setting: Setting) -> None:
        """Run the pipeline shortly."""
        if not np.array_equal(self.workload.pictures([0], PROBE_STEPS)[0], self.probe):
            raise StateError(
                f"{method.name} ({setting.call}) left the pipeline changed; nothing after it can be judged"
            )

    def computed_steps(self, flops: float) -> float:
        """The work for one prompt as steps of the full run."""
        return flops / self.flops * self.workload.steps

    def point(self, method: Method, setting: Setting) -> Point:
        """The figures of a setting, or its error."""
        try:
            rows = self._rows(_name(method, setting), setting)
            each, worst = tuple(row.psnr for row in rows), self._worst(_name(method, setting))
            point = Point(
                method=method.name,
                family=method.family,
                settings=dict(setting.settings),
                computed_steps=self.computed_steps(statistics.fmean(row.flops for row in rows)),
                psnr=bootstrap(each),
                each=each,
                ssim=bootstrap([row.ssim for row in rows]),
                scores={name: bootstrap([row.scores[name] for row in rows]) for name in self.workload.scores},
                kept_bytes=max(row.kept_bytes for row in rows),
                call=setting.call,
                worst=f"{worst.parent.name}/{worst.name}" if worst is not None and worst.exists() else "",
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

    def timed(self, point: Point, method: Method, setting: Setting, prompts: int) -> tuple[Point, list[Turn]]:
        """The point with its times by the clock, and the full run's turns: both take turns on so many prompts."""
        run, turns = f"clock, {_name(method, setting)}", list[list[Turn]]()
        for number in range(min(prompts, len(self.workload.prompts))):
            pair = self._journal.find(self._part, run, number, list[Turn])
            if pair is None:
                if not turns:  # to warm up
                    self.run(setting, number, timed=True)
                both = (None, setting)
                runs = [[self.run(each, number, timed=True) for each in both] for _ in range(TURNS)]
                pair = [_fastest(each) for each in zip(*runs, strict=True)]
                self._journal.add(self._part, run, number, pair)
            turns.append(pair)
        return replace(
            point,
            speedup=spread([full.seconds / own.seconds for full, own in turns]),
            seconds=spread([own.seconds for _, own in turns]),
            peak_bytes=_most([own for _, own in turns]),
        ), [full for full, _ in turns]

    def case(self, points: Iterable[Point], turns: Sequence[Turn] = (), missing: Sequence[str] = ()) -> Case:
        """The record of these points, and of what is not measured yet."""
        workload, rows = self.workload, self._full_rows
        full = Reference(
            seconds=spread([turn.seconds for turn in turns]) if turns else None,
            scores={name: statistics.fmean(row.scores[name] for row in rows) for name in workload.scores},
            peak_bytes=_most(turns),
        )
        same = {name: getattr(workload, name) for name in ("steps", "guidance", "prompts", "seed")}
        return Case(pipeline=workload.name, **same, full=full, points=tuple(points), missing=tuple(missing))


def _name(method: Method, setting: Setting) -> str:
    return f"{method.name}: {setting.call} {setting.version} {method.version}"


def _fastest(runs: Sequence[MeasuredRun]) -> Turn:
    return Turn(seconds=min(run.seconds for run in runs), peak_bytes=_most(runs))


def _most(runs: Sequence[MeasuredRun | Turn]) -> int | None:
    return max((run.peak_bytes for run in runs if run.peak_bytes is not None), default=None)
