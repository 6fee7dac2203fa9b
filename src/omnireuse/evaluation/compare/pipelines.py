"""Any pipeline as subjects of a comparison, and the comparison as one call from Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from omnireuse.diffusion.reuse.runtime.placement import describe
from omnireuse.errors import ConfigError
from omnireuse.evaluation.compare.catalogue import catalogue
from omnireuse.evaluation.compare.record import Record
from omnireuse.evaluation.compare.run import compare
from omnireuse.evaluation.compare.subject import SET_HERE, Subject, guided_call, own_guidance
from omnireuse.evaluation.report.pareto import Pareto
from omnireuse.extras import check_extra
from omnireuse.pipelines.signature import refuse_reserved
from omnireuse.pipelines.source import Source

__all__ = ["compare_pipeline", "subjects_of"]


def compare_pipeline(
    pipeline: Any,
    prompts: Sequence[str],
    *,
    steps: int | Sequence[int] = 28,
    guidance: float | Sequence[float] = (),
    profiles: Iterable[str | os.PathLike[str]] = (),
    only: Iterable[str] = (),
    seed: int = 0,
    timed: int = 0,
    batch_size: int = 1,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    pictures: Callable[[Any], Any] | None = None,
    out: str | os.PathLike[str] = "out/compare",
    progress: bool = True,
    **call: Any,
) -> Pareto:
    """Compare this library, other caches and plain fewer steps with a pipeline's full run.

    Args:
        pipeline: a pipeline that makes images or clips from prompts; nothing may be enabled on it. Or the folder of
            one, its id on a hub, "package:function", or a function without arguments that makes one.
        prompts: at least one.
        steps: denoising steps of the full run, or several numbers of them, each a case of its own.
        guidance: strengths of classifier-free guidance, 1 for none; empty for the pipeline's own.
        profiles: files of `Profile.save`; each serves the cases that it was searched at.
        only: methods, or families "ours", "peer" and "floor"; empty for all.
        seed: of the first prompt's noise; the others count on from it.
        timed: prompts for the wall-clock; 0 leaves it out.
        batch_size: prompts a call, where a method decides nothing by what it sees.
        device, dtype, pictures: as for `omnireuse.calibrate`.
        out: folder for ``compare.json``, which is written again after every setting.
        progress: whether to show a bar, on stderr or in the notebook.
        call: whatever else the pipeline is to be called with.

    Returns:
        All that was measured.

    Raises:
        ConfigError: no prompts, a pipeline that cannot be loaded or whose results are not safely read as pictures, or
            an argument of the call that is set here.
        UnknownNameError: a method that does not exist, or an argument that the pipeline does not take.
        MissingExtraError: the report's libraries are not installed.
        StateError: the pipeline did not come back as it was.
    """
    check_extra("a comparison", "report")
    if isinstance(prompts, str) or not isinstance(prompts, Sequence) or not all(isinstance(p, str) for p in prompts):
        raise ConfigError(f"compare(prompts=…): prompts must be a list of texts, got a {type(prompts).__name__}")
    methods = catalogue([Path(path) for path in profiles], only)
    subjects = subjects_of(
        Source(given=pipeline, device=device, dtype=dtype, where="compare"),
        prompts,
        steps=[steps] if isinstance(steps, int) else list(steps),
        guidance=[guidance] if isinstance(guidance, (int, float)) else list(guidance),
        call=call,
        seed=seed,
        batch_size=batch_size,
        as_pictures=pictures,
    )
    record = Record(Path(out), "omnireuse.compare_pipeline")
    for subject in subjects:
        title = f"{subject.steps} steps, guidance {subject.guidance:g}"
        with tqdm(desc=title, unit=" settings", disable=not progress, file=sys.stderr) as bar:
            if progress and subject is subjects[0]:
                told = f"{describe(subject.pipeline)}; {len(subject.prompts)} prompts, {len(methods)} methods"
                bar.write(told, file=bar.fp)

            def advance(doing: str, done: int, total: int, bar: Any = bar, title: str = title) -> None:
                bar.set_description_str(f"{title}: {doing}", refresh=False)
                if total and bar.total is None:
                    bar.reset(total=total)
                bar.update(done - bar.n)

            record.place(subject.pipeline)
            case = compare(subject, methods, timed=timed, advance=advance, save=record.keep)
            advance("done", len(case.points), len(case.points))
    made = record.finish(complete=True)
    assert made is not None, "there is at least one subject"
    return made


def subjects_of(
    source: Source,
    prompts: Sequence[str],
    *,
    steps: Sequence[int],
    guidance: Sequence[float],
    call: dict[str, Any],
    **beside: Any,
) -> list[Subject]:
    """A subject for each number of steps and each strength of guidance, on one pipeline.

    Args:
        steps: of the full run.
        guidance: empty for the pipeline's own.
        call: further arguments of every call.
        beside: further fields of each `Subject`.

    Raises:
        ConfigError: as `Source.load` and `Subject`.
    """
    refuse_reserved("compare", call, **SET_HERE)
    if not steps:
        raise ConfigError("compare(steps=[]): steps must hold at least one number")
    for count in steps:
        if not isinstance(count, int) or count < 2:
            raise ConfigError(f"compare(steps={count!r}): steps must be whole numbers of at least 2")
    pipeline = source.load()
    strengths: Sequence[float | None] = guidance or [None]
    found = []
    for count in steps:
        for strength in strengths:
            given = {} if strength is None else guided_call(pipeline, strength)
            subject = Subject(
                name=source.name(pipeline),
                pipeline=pipeline,
                steps=count,
                guidance=own_guidance(pipeline, call) if strength is None else strength,
                prompts=tuple(prompts),
                call={**call, **given},
                **beside,
            )
            found.append(subject)
    return found
