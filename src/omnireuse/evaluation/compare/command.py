"""``omnireuse compare``: load a pipeline, run every method on it, and write the record, the table and the picture."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from omnireuse.diffusion.reuse.runtime.placement import describe
from omnireuse.errors import ConfigError
from omnireuse.evaluation.compare.catalogue import catalogue
from omnireuse.evaluation.compare.figure import save_figure
from omnireuse.evaluation.compare.methods import Method
from omnireuse.evaluation.compare.ours import warn_of_unused
from omnireuse.evaluation.compare.pipelines import subjects_of
from omnireuse.evaluation.compare.record import FILE, Record, merged
from omnireuse.evaluation.compare.run import compare
from omnireuse.evaluation.compare.subject import Subject
from omnireuse.evaluation.compare.table import case_table, targets_table
from omnireuse.evaluation.report.pareto import Pareto, write_pareto
from omnireuse.extras import check_extra
from omnireuse.pipelines.source import Source, function_named
from omnireuse.records import check_writable
from omnireuse.terminal import notes, progress_bar

__all__ = ["compare_all", "read_prompts", "run_compare", "run_merge", "show"]


def run_compare(
    model: str | os.PathLike[str],
    prompts: Path,
    out: Path,
    console: Console,
    *,
    steps: Sequence[int],
    guidance: Sequence[float],
    profiles: Sequence[Path] = (),
    only: Sequence[str] = (),
    seed: int = 0,
    timed: int = 0,
    batch_size: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    pictures: str | None = None,
    call: dict[str, Any] | None = None,
    command: str = "omnireuse compare",
) -> bool:
    """Compare on a pipeline with the prompts of a file.

    Args:
        model: folder, id on a hub, or ``package:function``.
        guidance: strengths of classifier-free guidance; empty for the pipeline's own.
        device, dtype: as for `Source`.
        pictures: ``package:function`` for what reads the pipeline's results; None where they are read as usual.
        call: further arguments of every call.

    Returns:
        Whether it ran to its end.

    Raises:
        ConfigError: no pipeline there, no prompts, or no such method.
        MissingExtraError: the report's libraries are not installed.
    """
    check_extra("a comparison", "report")
    methods, texts = catalogue(profiles, only), read_prompts(prompts)
    check_writable(out / FILE)
    source = Source(given=model, device=device, dtype=dtype, where="compare")
    source.check()
    as_pictures = None if pictures is None else function_named(pictures, "compare(--pictures")
    with notes.status(f"loading {model}"):
        subjects = subjects_of(
            source,
            texts,
            steps=steps,
            guidance=guidance,
            call=call or {},
            seed=seed,
            batch_size=batch_size,
            as_pictures=as_pictures,
        )
    warn_of_unused(profiles, subjects)
    told = f"{describe(subjects[0].pipeline)}; {len(texts)} prompts, {len(methods)} methods"
    notes.print(told, highlight=False, soft_wrap=True)
    return compare_all(subjects, methods, out, console, timed=timed, command=command)


def compare_all(
    subjects: Iterable[Subject],
    methods: Sequence[Method],
    out: Path,
    console: Console,
    *,
    timed: int,
    command: str,
) -> bool:
    """Compare on one subject after the other, and show what came of it; also what was measured before a Ctrl-C.

    Returns:
        Whether it ran to its end.
    """
    record, complete = Record(out, command), True
    doing = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (doing, BarColumn(12), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with progress_bar(*columns) as progress:
            for subject in subjects:
                record.place(subject.pipeline)
                compare(subject, methods, timed=timed, advance=_bar(progress, subject), save=record.keep)
    except KeyboardInterrupt:
        complete = False
        notes.print("interrupted: what was measured is kept")
    pareto = record.finish(complete=complete)
    if pareto is not None:
        show(pareto, out, console)
    return complete


def run_merge(paths: Sequence[Path], out: Path, console: Console) -> None:
    """Put parts of a comparison together and show the whole.

    Raises:
        ConfigError: files that do not belong together.
    """
    check_writable(out / FILE)
    pareto = merged(paths)
    write_pareto(pareto, out / FILE)
    show(pareto, out, console)


def show(pareto: Pareto, out: Path, console: Console) -> None:
    """The tables on the console, the picture in `out`."""
    for case in pareto.cases:
        for table in (case_table(case), targets_table(case)):
            console.print(table)
            console.print()
    picture = out / "compare.png"
    save_figure(pareto, picture)
    console.print(f"wrote {out / FILE} and {picture}", soft_wrap=True)


def read_prompts(path: Path) -> tuple[str, ...]:
    """The lines of a file that are not blank.

    Raises:
        ConfigError: no such file, or nothing in it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"compare(--prompts {str(path)!r}): cannot be read ({error})") from error
    prompts = tuple(line.strip() for line in lines if line.strip())
    if not prompts:
        raise ConfigError(f"compare(--prompts {str(path)!r}): must hold one prompt a line, got none")
    return prompts


def _bar(progress: Progress, subject: Subject) -> Callable[[str, int, int], None]:
    task = progress.add_task("", total=None)

    def advance(doing: str, done: int, total: int) -> None:
        words = f"{subject.steps} steps, guidance {subject.guidance:g}: {doing}"
        progress.update(task, description=words, completed=done, total=total or None)

    return advance
