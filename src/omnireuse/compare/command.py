"""``omnireuse compare``: load a pipeline, run every method on it, and write the record, the table and the picture."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from omnireuse.compare.catalogue import catalogue
from omnireuse.compare.figure import save_figure
from omnireuse.compare.methods import Method
from omnireuse.compare.record import FILE, Record, merged
from omnireuse.compare.run import compare
from omnireuse.compare.subject import GUIDANCE, Subject, guided_call
from omnireuse.compare.table import case_table, targets_table
from omnireuse.errors import ConfigError
from omnireuse.report.pareto import Pareto, write_pareto

__all__ = ["compare_all", "read_prompts", "run_compare", "run_merge", "show"]


def run_compare(
    model: Path,
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
    call: dict[str, Any] | None = None,
    command: str = "omnireuse compare",
) -> bool:
    """Compare on the pipeline in `model` with the prompts of a file.

    Args:
        guidance: strengths of classifier-free guidance; empty for the pipeline's own.
        call: further arguments of every call.

    Returns:
        Whether it ran to its end.

    Raises:
        ConfigError: no pipeline there, no prompts, or no such method.
    """
    methods, texts = catalogue(profiles, only), read_prompts(prompts)
    if not (model / "model_index.json").is_file():
        raise ConfigError(f"compare({str(model)!r}): must be the folder of a diffusers pipeline with model_index.json")
    from diffusers import DiffusionPipeline

    with console.status(f"loading {model}"):
        pipeline = DiffusionPipeline.from_pretrained(model)
    pipeline.set_progress_bar_config(disable=True)

    def subject(count: int, strength: float | None) -> Subject:
        given = {} if strength is None else guided_call(pipeline, strength)
        return Subject(
            name=model.resolve().name,
            pipeline=pipeline,
            steps=count,
            guidance=_own_guidance(pipeline, call or {}) if strength is None else strength,
            prompts=texts,
            seed=seed,
            call={**(call or {}), **given},
            batch_size=batch_size,
        )

    strengths: Sequence[float | None] = guidance or [None]
    subjects = [subject(count, strength) for count in steps for strength in strengths]
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
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            for subject in subjects:
                compare(subject, methods, timed=timed, advance=_bar(progress, subject), save=record.keep)
    except KeyboardInterrupt:
        complete = False
        console.print("interrupted: what was measured is kept")
    pareto = record.finish(complete=complete)
    if pareto is not None:
        show(pareto, out, console)
    return complete


def run_merge(paths: Sequence[Path], out: Path, console: Console) -> None:
    """Put parts of a comparison together and show the whole.

    Raises:
        ConfigError: files that do not belong together.
    """
    pareto = merged(paths)
    out.mkdir(parents=True, exist_ok=True)
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
        words = f"{subject.name}, {subject.steps} steps, guidance {subject.guidance:g}: {doing}"
        progress.update(task, description=words, completed=done, total=total or None)

    return advance


def _own_guidance(pipeline: Any, call: dict[str, Any]) -> float:
    """The strength of guidance that the pipeline samples with unless told otherwise."""
    known = inspect.signature(type(pipeline).__call__).parameters
    name = next((name for name in GUIDANCE if name in known), None)
    return 1.0 if name is None else float(call.get(name, known[name].default))
