"""``omnireuse compare``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from omnireuse.cli.options import Quiet, Verbose
from omnireuse.cli.parsing import INTERRUPTED, json_object
from omnireuse.cli.source import Device, Dtype, Model, Pictures, Pipeline, the_source
from omnireuse.errors import ConfigError
from omnireuse.extras import check_extra

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse compare models/shapes-flux --prompts prompts.txt --steps 28 50
$ omnireuse compare MODEL --prompts prompts.txt --profile profile.json
$ omnireuse compare MODEL --prompts prompts.txt --only ours fewer-steps
$ omnireuse compare --merge part1/compare.json part2/compare.json"""


def run(
    model: Model = None,
    prompts: Annotated[Path | None, typer.Option(metavar="FILE", help="Text file with one prompt a line.")] = None,
    steps: Annotated[
        list[int] | None,
        typer.Option(metavar="N...", help="Denoising steps of the full run (default: 28)."),
    ] = None,
    guidance: Annotated[
        list[float] | None,
        typer.Option(
            metavar="G...",
            help="Classifier-free guidance; 1 is none (default: that of the pipeline).",
        ),
    ] = None,
    profile: Annotated[
        list[Path] | None, typer.Option(metavar="FILE...", help="Profiles that omnireuse calibrate has written.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD...", help="Methods or families of them: ours, peer, floor (default: all)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise of the first prompt.")] = 0,
    time: Annotated[int, typer.Option(metavar="N", help="Prompts to measure the wall-clock on; 0 is none.")] = 0,
    batch: Annotated[int, typer.Option(help="Prompts in a call, where a method allows it.")] = 1,
    pipeline: Pipeline = None,
    device: Device = None,
    dtype: Dtype = None,
    pictures: Pictures = None,
    call: Annotated[
        Any,
        typer.Option(
            parser=json_object, metavar="JSON", help="""Further arguments of the pipeline, as '{"height": 512}'."""
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/compare"),
    merge: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE...", help="Put results of runs that were made apart together, and run nothing."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Compare this library, other caches and plain fewer steps with the full run of a pipeline.

    The other caches are those of diffusers and of cache-dit. Options marked
    with "..." take several values.
    """
    check_extra("omnireuse compare", "report")
    from omnireuse.evaluation.compare.command import run_compare, run_merge

    if merge:
        run_merge(merge, out, Console())
        return 0
    source = the_source("compare", model, pipeline, unless=", unless --merge is")
    if prompts is None:
        raise ConfigError("compare: --prompts must be given, unless --merge is; see omnireuse compare --help")
    complete = run_compare(
        source,
        prompts,
        out,
        Console(),
        steps=steps or [28],
        guidance=guidance or [],
        profiles=profile or [],
        only=only or [],
        seed=seed,
        timed=time,
        batch_size=batch,
        device=device,
        dtype=dtype,
        pictures=pictures,
        call=call or {},
    )
    return 0 if complete else INTERRUPTED
