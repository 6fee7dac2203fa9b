"""``omnireuse calibrate``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from omnireuse.cli.options import (
    Call,
    Device,
    Dtype,
    Model,
    Pictures,
    Pipeline,
    Quiet,
    Verbose,
    pipeline_source,
    read_prompts,
    whole_numbers,
)
from omnireuse.cli.program import INTERRUPTED
from omnireuse.errors import ConfigError

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse calibrate models/shapes-flux --prompts prompts.txt
$ omnireuse calibrate MODEL --prompts prompts.txt --computed 9,14
$ omnireuse calibrate MODEL --prompts prompts.txt --call '{"height": 512}'
$ omnireuse calibrate --pipeline my_package.models:load --prompts prompts.txt"""


def run(
    model: Model = None,
    *,
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="Text file with one prompt a line; a third of them is held out.")
    ],
    out: Annotated[Path, typer.Option(help="The profile to write.")] = Path("profile.json"),
    steps: Annotated[int | None, typer.Option(help="Denoising steps of a run (default: 28).")] = None,
    computed: Annotated[
        Any,
        typer.Option(
            parser=whole_numbers,
            metavar="N,N,...",
            help="Numbers of computed steps to search for (default: 1.5 to 4 times fewer than all).",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Prompts in a call.")] = 1,
    fit_prompts: Annotated[int, typer.Option(metavar="N", help="Number of prompts that schedules are tried on.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the noise and of the search.")] = 0,
    pipeline: Pipeline = None,
    device: Device = None,
    dtype: Dtype = None,
    pictures: Pictures = None,
    call: Call = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a profile that is there already.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Search the best schedules for a pipeline on its own runs, and write them as a profile.

    After an interrupt the profile holds what was found so far.
    """
    texts = read_prompts(prompts, "calibrate(--prompts")
    if len(texts) < 2:
        raise ConfigError(f"calibrate(--prompts {str(prompts)!r}): must hold at least two prompts, got {len(texts)}")
    from omnireuse.calibration.command import run_calibrate

    profile = run_calibrate(
        pipeline_source("calibrate", model, pipeline),
        texts,
        out,
        Console(),
        steps=steps,
        computed_steps=computed,
        batch_size=batch,
        fit_prompts=fit_prompts,
        seed=seed,
        device=device,
        dtype=dtype,
        pictures=pictures,
        force=force,
        call=call or {},
    )
    return 0 if profile.complete else INTERRUPTED
