"""A comparison on any pipeline, as one call from Python and for the command line."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from rich.console import Console
from tqdm.auto import tqdm

import omnireuse
from omnireuse.base.records import check_writable
from omnireuse.errors import ConfigError, OmniReuseError
from omnireuse.hooks.denoisers import describe, device_of, dtype_of
from omnireuse.pipelines import Source
from omnireuse_lab.compare.count import now
from omnireuse_lab.compare.harness import Harness, Turn
from omnireuse_lab.compare.journal import Journal
from omnireuse_lab.compare.methods import METHODS, chosen_methods, own_methods
from omnireuse_lab.compare.methods.base import Method, Setting
from omnireuse_lab.compare.table import answers_table, case_table
from omnireuse_lab.compare.workload import Score, Workload, workloads_of
from omnireuse_lab.front import nearest_to_half
from omnireuse_lab.record import Case, Comparison, Point, environment, read_comparison, write_comparison
from omnireuse_lab.report.page import write_page

__all__ = [
    "compare",
    "compare_all",
    "compare_pipeline",
    "failed_settings",
    "results_file",
    "settings_of",
    "short_of",
    "show",
]

logger = logging.getLogger("omnireuse")


def settings_of(methods: Iterable[Method], harness: Harness) -> Iterator[tuple[Method, Setting | Exception]]:
    """Every method with each of its settings, or with its error if it cannot serve the workload at all."""
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
    journal: Journal | None = None,
    advance: Callable[[str, int, int], None] = lambda *_: None,
    save: Callable[[Case], None] = lambda _: None,
    minutes: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Case:
    """Measure every method on the workload.

    Args:
        timed: prompts for the wall-clock, one setting of each method; 0 leaves it out.
        journal: as for `Harness`.
        advance: called with what runs now, how many settings are done and how many there are.
        save: called with the case so far after every setting.
        minutes: no setting begins later; the middle setting of each method comes first. None measures all.
        tell: called with an estimate of the time, before the full run is measured.
    """
    advance("a few steps, to estimate the time", 0, 0)
    with Harness(workload, journal=journal) as harness:
        points: list[Point] = []
        left, prompts = list(settings_of(methods, harness)), len(workload.prompts)
        tell(_estimate(len(left), prompts, harness.seconds))
        advance("full runs", 0, 0)
        harness.measure_full(lambda done: advance(f"full runs, {done} of {prompts}", 0, 0))
        if minutes is not None:
            left = _middle_first(left)
        names, begun = [setting.call if isinstance(setting, Setting) else m.name for m, setting in left], now()
        for number, (method, setting) in enumerate(left):
            if minutes is not None and now() - begun > 60 * minutes:
                break
            advance(method.name, number, len(left))
            if isinstance(setting, Setting):
                points.append(harness.point(method, setting))
            else:
                points.append(harness.failed(method, setting))
            save(harness.case(points, missing=names[len(points) :]))
        turns: list[Turn] = []
        for number in nearest_to_half(points, workload.steps) if timed else ():
            method, setting = left[number]
            assert isinstance(setting, Setting), "a point with figures comes from a setting"
            advance(f"timing {points[number].method}", len(left), len(left))
            points[number], took = harness.timed(points[number], method, setting, timed)
            turns += took
        case = harness.case(points, turns, names[len(points) :])
        save(case)
        return case


def _middle_first(settings: Sequence[tuple[Method, Any]]) -> list[tuple[Method, Any]]:
    """The middle setting of each method, then those beside it, and so on."""
    grids = [[each for each in settings if each[0] is method] for method in dict.fromkeys(m for m, _ in settings)]
    ranked = [(abs(2 * place - len(grid) + 1) // 2, each) for grid in grids for place, each in enumerate(grid)]
    return [each for _, each in sorted(ranked, key=lambda ranked: ranked[0])]


def _estimate(settings: int, prompts: int, seconds: float) -> str:
    most = (1 + settings) * prompts * seconds
    shown = f"{most / 3600:.1f} hours" if most > 5400 else f"{most / 60:.0f} minutes" if most > 90 else f"{most:.0f} s"
    asked = f"settings: {settings}, prompts: {prompts}"
    return f"{asked}; a full run takes about {seconds:.1f} s: at most about {shown} in all"


FILE = "compare.json"


def compare_pipeline(
    pipeline: Any,
    prompts: Sequence[str],
    *,
    steps: int | Sequence[int] = 28,
    guidance: float | Sequence[float] = (),
    profiles: Iterable[str | os.PathLike[str]] = (),
    only: Iterable[str] = (),
    methods: Iterable[Method | omnireuse.Forecaster | omnireuse.Policy] = (),
    calibration_prompts: Sequence[str] = (),
    seed: int = 0,
    timed: int = 0,
    scores: Mapping[str, Score] | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    pictures: Callable[[Any], Any] | None = None,
    out: str | os.PathLike[str] = "out/compare",
    fresh: bool = False,
    minutes: float | None = None,
    progress: bool = True,
    command: str = "omnireuse_lab.compare_pipeline",
    **call: Any,
) -> Comparison:
    """Compare this library, other caches and plain fewer steps with a pipeline's full run.

    An interrupt (Ctrl-C) ends the comparison; what was measured is returned, with `complete` False. Every figure is
    kept in a file "….jsonl" beside the results, and the pictures of the full runs in a folder. The same call goes on
    from there and measures nothing that the file holds, but for calibrations; with other methods it adds their figures.

    Args:
        pipeline: a pipeline that makes images or clips from prompts; nothing may be enabled on it. Or the folder of
            one, its id on a hub, "package:function", or a function without arguments that makes one.
        prompts: at least one.
        steps: denoising steps of the full run, or several numbers of them, each a case of its own.
        guidance: strengths of classifier-free guidance, 1 for none; empty for the pipeline's own.
        profiles: as `Profile.from_pretrained` takes them; each serves the cases that it was searched at.
        only: methods, families "ours", "peer" and "baseline", or names of backends as `enable` takes them; empty for
            all but the latter.
        methods: further methods of your own; `only` may name them, so that no others are compared. A forecaster is
            compared in the default's place, in `Strategy.default` at several speed-ups, and so is a policy.
        calibration_prompts: prompts for methods that calibrate themselves, none of `prompts`; 24 are enough. Without
            any, those methods are left out, and the results say so.
        seed: of the first prompt's noise; the others count on from it.
        timed: prompts for the wall-clock; 0 leaves it out.
        scores: further scores by name, each a function (picture, picture of the full run, prompt) -> score. Pictures
            are (height, width, channels) in 0…1, a clip has its frames before them.
        device: as for `omnireuse.calibrate`, and so are `dtype` and `pictures`.
        out: the file of the results, "….json", or a folder for ``compare.json``; written again after every setting.
        fresh: begin anew, and replace what an earlier call has measured.
        minutes: begin no setting later in each case, after its full run; the middle setting of each method comes
            first, and the results say what is missing. None measures all.
        progress: whether to show a bar, on stderr or in the notebook.
        command: for the record.
        call: further arguments of the pipeline's call.

    Returns:
        All that was measured.

    Raises:
        ConfigError: no prompts, a pipeline that cannot be loaded or whose results are not safely read as pictures, an
            argument of the call that is set here, or earlier results in `out` that were made otherwise.
        UnknownNameError: a method that does not exist, or an argument that the pipeline does not take.
        StateError: the pipeline could not be restored.
    """
    for name, given in (("prompts", prompts), ("calibration_prompts", calibration_prompts)):
        if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(p, str) for p in given):
            raise ConfigError(f"compare({name}=…): {name} must be a list of texts, got a {type(given).__name__}")
    chosen = chosen_methods(list(profiles), only, own_methods(methods))
    file = results_file(out)
    check_writable(file)
    if fresh:
        Journal(file.with_suffix(".jsonl")).clear()
        file.unlink(missing_ok=True)
    source = Source(given=pipeline, device=device, dtype=dtype, where="compare")
    source.check()
    workloads = workloads_of(
        source,
        prompts=tuple(prompts),
        steps=[steps] if isinstance(steps, int) else list(steps),
        guidance=[guidance] if isinstance(guidance, (int, float)) else list(guidance),
        call=call,
        seed=seed,
        calibration=tuple(calibration_prompts),
        calibration_seed=seed + len(prompts),
        scores=dict(scores or {}),
        as_pictures=pictures,
    )
    if progress:
        shown = f"{describe(workloads[0].pipeline)}; prompts: {len(prompts)}, methods: {len(chosen)}"
        tqdm.write(shown, file=sys.stderr)
    options: dict[str, Any] = {"timed": timed, "minutes": minutes, "command": command, "progress": progress}
    left_out = [method.name for method in METHODS.values() if method not in chosen]
    return compare_all(workloads, chosen, file, not_chosen=left_out, **options)


def results_file(out: str | os.PathLike[str]) -> Path:
    """The file of the results: `out` itself if it ends in ".json", else ``compare.json`` in that folder."""
    return Path(out) if Path(out).suffix == ".json" else Path(out) / FILE


def compare_all(
    workloads: Iterable[Workload],
    methods: Sequence[Method],
    file: Path,
    *,
    timed: int,
    command: str,
    minutes: float | None = None,
    not_chosen: Sequence[str] = (),
    progress: bool = True,
) -> Comparison:
    """Compare on one workload after the other, and write `file` and its page after every setting.

    Every figure is kept beside the file. What is there already is not measured again, and figures of other methods
    stay. The record names those of `not_chosen` that the file has no figures of.
    """
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    earlier = _earlier(file)
    cases: dict[tuple[str, int, float], Case] = dict(earlier)
    chosen, is_begun = {method.name for method in methods}, False
    place: dict[str, str] = {}

    def record(*, complete: bool) -> Comparison:
        head: dict[str, Any] = {"command": command, "created": created, "environment": environment(**place)}
        there = {point.method for case in cases.values() for point in case.points}
        head["not_chosen"] = tuple(name for name in not_chosen if name not in there)
        made = Comparison(**head, complete=complete, cases=tuple(cases.values()))
        write_comparison(made, file)
        write_page(made, file.with_suffix(".html"))
        return made

    def save(case: Case) -> None:
        nonlocal is_begun
        key, is_begun = (case.pipeline, case.steps, case.guidance), True
        if key in earlier:
            others = tuple(point for point in earlier[key].points if point.method not in chosen)
            full = case.full if case.full.seconds is not None else earlier[key].full
            case = replace(case, full=full, points=others + case.points)
        cases[key] = case
        record(complete=False)

    journal = Journal(file.with_suffix(".jsonl"))
    try:
        for workload in workloads:
            place = {"device": device_of(workload.pipeline), "dtype": dtype_of(workload.pipeline)}
            title = f"{workload.steps} steps, guidance {workload.guidance:g}"
            with tqdm(desc=title, unit=" settings", disable=not progress, file=sys.stderr) as bar:

                def advance(doing: str, done: int, total: int, bar: Any = bar, title: str = title) -> None:
                    bar.set_description_str(f"{title}: {doing}", refresh=not total)
                    if total and bar.total is None:
                        bar.reset(total=total)
                    bar.update(done - bar.n)

                options: dict[str, Any] = {"timed": timed, "journal": journal, "minutes": minutes}
                tell = partial(bar.write, file=sys.stderr) if progress else lambda _: None
                done = compare(workload, methods, advance=advance, save=save, tell=tell, **options)
                advance("done", len(done.points), len(done.points))
    except KeyboardInterrupt:
        if not is_begun:
            raise
        logger.warning(
            "interrupted: what was measured is kept in %s; the same command goes on from there, --fresh begins anew",
            file,
        )
        return record(complete=False)
    return record(complete=True)


def _earlier(file: Path) -> dict[tuple[str, int, float], Case]:
    """The cases of an earlier comparison in this file, which its journal lets go on."""
    if not file.exists():
        return {}
    if not file.with_suffix(".jsonl").exists():
        raise ConfigError(
            f"{file}: the results of another comparison are here, without {file.with_suffix('.jsonl').name} to go on "
            "from; choose another --out, or delete them (--fresh, or fresh=True)"
        )
    return {(case.pipeline, case.steps, case.guidance): case for case in read_comparison(file).cases}


def short_of(comparison: Comparison, decibels: float) -> list[str]:
    """The settings, but for baselines, of which fewer than nine pictures of ten reach a PSNR, each with its figure."""
    found = []
    for case in comparison.cases:
        for point in case.points:
            reached = sum(each >= decibels for each in point.each)
            if point.family != "baseline" and point.error is None and reached < 0.9 * len(point.each):
                found.append(f"{case.name}: {point.call}: {reached} of {len(point.each)} pictures")
    return found


def failed_settings(comparison: Comparison) -> list[str]:
    """The settings that were enabled and gave no figures, each with its error; not the methods that do not serve the
    pipeline."""
    return [
        f"{case.name}: {point.call}: {point.error.splitlines()[0]}"
        for case in comparison.cases
        for point in case.points
        if point.error and point.call != point.method
    ]


def show(comparison: Comparison, file: Path, console: Console) -> None:
    """Print the tables, and write the record and its page beside it."""
    for case in comparison.cases:
        for table in (case_table(case), answers_table(case)):
            console.print(table)
            console.print()
    write_comparison(comparison, file)
    page = write_page(comparison, file.with_suffix(".html"))
    missing = sum(len(case.missing) for case in comparison.cases)
    if missing:
        console.print(f"settings that are not measured: {missing}; the page names them", soft_wrap=True)
    console.print(f"wrote {file} and {page}", soft_wrap=True)
