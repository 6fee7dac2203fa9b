"""``omnireuse compare``: its options."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from omnireuse.base.terminal import notes
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
)
from omnireuse.cli.program import INTERRUPTED
from omnireuse.errors import ConfigError

__all__ = ["EXAMPLES", "run"]

SHORT, FAILED = 1, 3
"""Exit statuses: pictures fall short of --at-least; a setting failed."""

EXAMPLES = """Examples:
$ omnireuse compare models/shapes-flux --prompts prompts.txt --steps 28 50
$ omnireuse compare MODEL --prompts prompts.txt --profile profile.json
$ omnireuse compare MODEL --prompts prompts.txt --only ours fewer-steps
$ omnireuse compare MODEL --prompts prompts.txt --minutes 5
$ omnireuse compare MODEL --prompts prompts.txt --only default --at-least 40"""


def run(
    model: Model = None,
    *,
    prompts: Annotated[Path, typer.Option(metavar="FILE", help="Text file with one prompt a line.")],
    steps: Annotated[
        list[int] | None, typer.Option(metavar="N...", help="Denoising steps of the full run (default: 28).")
    ] = None,
    guidance: Annotated[
        list[float] | None,
        typer.Option(metavar="G...", help="Classifier-free guidance; 1 is none (default: that of the pipeline)."),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE...", help="Profiles: files or folders, or ids on the Hugging Face Hub (owner/name@revision)."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD...", help="Methods or families of them: ours, peer, baseline (default: all)."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE:OBJECT...",
            help="Methods of your own, or forecasters and policies in the default's place; beside those of --only.",
        ),
    ] = None,
    calibration_prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Prompts for methods that calibrate themselves, none of those that are compared."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise of the first prompt.")] = 0,
    time: Annotated[int, typer.Option(metavar="N", help="Prompts to measure the wall-clock on; 0 is none.")] = 0,
    pipeline: Pipeline = None,
    device: Device = None,
    dtype: Dtype = None,
    pictures: Pictures = None,
    call: Call = None,
    out: Annotated[Path, typer.Option(help="Folder for the results, or their file, *.json.")] = Path("out/compare"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew, and replace what an earlier run has measured.")
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="Begin no setting later than this; those in the middle come first."),
    ] = None,
    at_least: Annotated[
        float | None,
        typer.Option(
            "--at-least", metavar="DB", help="End with status 1 if fewer than nine pictures of ten reach this PSNR."
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Compare this library, other caches and plain fewer steps with the full run of a pipeline.

    The other caches are those of diffusers and of cache-dit. Options marked
    with "..." take several values. The same command goes on where an earlier
    one was interrupted, and another --only adds to what it has measured.

    Exit status: 1 if --at-least is missed, 3 if a setting failed.
    """
    source = pipeline_source("compare", model, pipeline)
    notes.print("loading the libraries and the model")
    from omnireuse.pipelines import function_named
    from omnireuse_lab.compare.methods import method_named
    from omnireuse_lab.compare.run import compare_pipeline, failed_settings, results_file, short_of, show

    if own := (call or {}).keys() & signature(compare_pipeline).parameters:
        raise ConfigError(f"compare(--call): {min(own)} is an option of compare; see omnireuse compare --help")
    comparison = compare_pipeline(
        source,
        read_prompts(prompts, "compare(--prompts"),
        steps=steps or [28],
        guidance=guidance or [],
        profiles=profile or [],
        only=only or [],
        calibration_prompts=[]
        if calibration_prompts is None
        else read_prompts(calibration_prompts, "compare(--calibration-prompts"),
        seed=seed,
        timed=time,
        device=device,
        dtype=dtype,
        pictures=None if pictures is None else function_named(pictures, "compare(--pictures"),
        out=out,
        methods=[method_named(each) for each in method or []],
        fresh=fresh,
        minutes=minutes,
        progress=not notes.quiet,
        command="omnireuse compare",
        **(call or {}),
    )
    show(comparison, results_file(out), Console())
    failed = failed_settings(comparison)
    short = [] if at_least is None else [*short_of(comparison, at_least), *failed]
    for what, lines in (("failed", failed), (f"nine of ten pictures must reach {at_least} dB", short)):
        for line in lines:
            notes.print(f"{what}: {line}", highlight=False, soft_wrap=True)
    if not comparison.complete:
        return INTERRUPTED
    return SHORT if short else FAILED if failed else 0
