"""``python -m reference demo``: compare, show the table, write the page."""

from __future__ import annotations

import os
import statistics
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

import omnireuse
from omnireuse.arguments.tune import PICTURES, is_off_by_environment
from omnireuse.base.records import check_writable
from omnireuse.base.terminal import notes, progress_bar
from omnireuse.errors import ConfigError, StateError
from omnireuse.profiles.profile import Profile
from omnireuse.tuning.store import DIRECTORY
from omnireuse_lab.record import Comparison, environment
from reference.case import CLIPS, FACES, Case
from reference.demo.compare import Cache, compare_caches, generations
from reference.demo.config import DemoConfig
from reference.demo.live import LiveStrip
from reference.demo.page import write_demo_page
from reference.demo.record import Demo, read_demo, write_demo
from reference.demo.table import demo_table
from reference.workload import load_quietly, reference_workload

__all__ = ["CACHES", "run_demo"]

RECORD, PAGE = "report.json", "report.html"
#: What is compared on any model; the page is about the first.
CACHES = (
    Cache(name="omnireuse default"),
    Cache(name="TeaCache 0.2", backend="tea_cache", options={"rel_l1_thresh": 0.2}),
    Cache(name="TeaCache 0.4", backend="tea_cache", options={"rel_l1_thresh": 0.4}),
)


def caches_for(case: Case, folder: Path, config: DemoConfig) -> tuple[Cache, ...]:
    """`CACHES`; where the model's folder has a profile for these steps and this guidance, two of its plans in place of
    the last."""
    word = "guided" if config.full_guidance > 1 else "unguided"
    found = folder / "profiles" / f"{case.name}-{config.full_steps}-{word}.json"
    if not found.is_file() or float(Profile.load(found).call[case.guidance]) != config.full_guidance:
        return CACHES
    here = Path.cwd()
    found = found.relative_to(here) if found.is_relative_to(here) else found
    searched = (
        Cache(name=f"calibrated, {speedup}x", options={"profile": found.as_posix(), "speedup": speedup})
        for speedup in (2, 3)
    )
    return (CACHES[0], *searched, *CACHES[1:2])


def _written_before(out: Path) -> list[Path]:
    """The files that an earlier demo has written to `out`, the record that names them last.

    Raises:
        ConfigError: a record that is not of a demo; it would be overwritten.
    """
    record = out / RECORD
    if not record.exists():
        return []
    try:
        earlier = read_demo(record)
    except ConfigError as error:
        raise ConfigError(
            f"demo(--out {str(out)!r}): {record} must be missing, or the record of an earlier demo; "
            f"delete it, or name another folder ({error})"
        ) from error
    rows = (earlier.full, *earlier.samples)
    return [*(out / name for name in dict.fromkeys(sample.image for row in rows for sample in row)), out / PAGE, record]


def tune_first(case: Case, pipeline: Any, config: DemoConfig) -> None:
    """Measure three other captions in full, so that the comparison shows what later pictures get."""
    if is_off_by_environment():
        return
    os.environ[DIRECTORY] = str((config.out / "cache").resolve())
    work = reference_workload(
        case,
        pipeline,
        steps=config.full_steps,
        guidance=config.full_guidance,
        prompts=1,
        seed=config.seed,
        calibration=PICTURES,
    )
    notes.print(f"tuning on {PICTURES} other prompts: computed in full, with trial runs beside them to find the plan")
    try:
        profile = omnireuse.tune(
            pipeline,
            work.calibration,
            seed=work.calibration_seed,
            num_inference_steps=config.full_steps,
            **work.call,
        )
    except StateError as error:
        notes.print(f"[yellow]not tuned:[/] {error}", highlight=False, soft_wrap=True)
        return
    (plan,) = profile.plans.values()
    if plan.evidence is not None and plan.weights:
        tuned, untuned = (statistics.fmean(each) for each in (plan.evidence.errors, plan.evidence.untuned))
        notes.print(
            f"tuned: {len(plan.steps)} of {profile.num_inference_steps} steps compute; error of the final latents "
            f"{tuned:.1%}, {untuned:.1%} untuned",
            highlight=False,
        )


def run_demo(config: DemoConfig, console: Console) -> bool:
    """Compare on the reference pipeline, and write the record and its page to `config.out`.

    Returns:
        Whether it is complete; False where an interrupt ended it and the finished prompts were kept.

    Raises:
        ConfigError: no pipeline where `config.model` says, or a folder that cannot be written to.
        KeyboardInterrupt: before anything could be kept.
    """
    case = CLIPS if config.video else FACES
    folder = case.find(config.model)
    earlier = _written_before(config.out)
    check_writable(config.out / RECORD)
    notes.print(f"loading {folder}", highlight=False)
    pipeline = load_quietly(case, folder)
    notes.print(
        f"{config.prompts} prompts, each in full ({config.full_steps} steps), with each cache, and with as few plain "
        "steps as the cache computed. [cyan]█[/] computed, [dim]░[/] reused.",
        highlight=False,
    )
    columns = (
        TextColumn("{task.description:<34}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[strip]}"),
    )
    live = LiveStrip()
    tune_first(case, pipeline, config)
    with progress_bar(*columns) as progress:
        caches = caches_for(case, folder, config)
        for path in earlier:
            path.unlink(missing_ok=True)
        bar = progress.add_task("full, to compare with", total=generations(config.prompts, len(caches)), strip="")

        def advance(name: str) -> None:
            progress.update(bar, advance=1, description=name)
            if not notes.is_terminal:
                notes.print(f"{progress.tasks[bar].completed:g} of {progress.tasks[bar].total:g}: {name}")

        workload = reference_workload(
            case,
            pipeline,
            steps=config.full_steps,
            guidance=config.full_guidance,
            prompts=config.prompts,
            seed=config.seed,
            name=folder.resolve().name,
        )
        compared, complete = compare_caches(
            workload,
            [partial(case.check, scene) for scene in case.held_out(config.prompts, seed=config.seed)],
            caches,
            folder=config.out,
            advance=advance,
            decided=lambda decision: progress.update(bar, strip=live.add(decision)),
        )
    comparison = Comparison(
        command="python -m reference demo",
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        environment=environment(),
        complete=complete,
        cases=(compared.case,),
    )
    demo = Demo(comparison=comparison, full=compared.full, samples=compared.samples)
    write_demo(demo, config.out / RECORD)
    page = write_demo_page(demo, config.out, config.out / PAGE)
    console.print(demo_table(demo))
    console.print()
    if not complete:
        done = len(demo.case.prompts)
        console.print(f"[yellow]interrupted:[/] kept the {done} of {config.prompts} prompts that were finished")
    for path in (config.out / RECORD, page):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    console.print(
        f"\nNext: open {page} in a browser. On your own model: omnireuse compare MODEL --prompts FILE",
        highlight=False,
        soft_wrap=True,
    )
    return complete
