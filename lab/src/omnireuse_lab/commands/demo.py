"""``omnireuse demo``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnireuse.cli.options import Call, Device, Dtype, Model, Pipeline, Quiet, Verbose, pipeline_source

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse demo models/shapes-flux
$ omnireuse demo MODEL --call '{"height": 512, "width": 512}'
$ omnireuse demo MODEL --prompt "a red fox in the snow" --speedup 2.5"""


def run(
    model: Model = None,
    prompt: Annotated[
        str | None, typer.Option(help="What to draw (default: as the model's card shows).", show_default=False)
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=2, help="Denoising steps of the full run (default: of the model's card, or 28).", show_default=False
        ),
    ] = None,
    speedup: Annotated[float, typer.Option(help="All steps over computed steps.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("out/demo"),
    pipeline: Pipeline = None,
    device: Device = None,
    dtype: Dtype = None,
    call: Call = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Draw one prompt in full, with reuse, and with as few plain steps.

    The three pictures go to a folder. The prompt, the steps and the arguments
    of the call come from the model's card (README.md: widget, inference) if
    you leave them out. "omnireuse compare" measures many prompts, and other
    caches too.
    """
    given = pipeline_source("demo", model, pipeline)
    from omnireuse.pipelines import Source
    from omnireuse_lab.demo import demonstrate

    source = Source(given=given, device=device, dtype=dtype, where="demo")
    source.check()
    for line in demonstrate(source, prompt, steps=steps, speedup=speedup, seed=seed, call=call, out=out):
        typer.echo(line)
    return 0
