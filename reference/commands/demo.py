"""``python -m reference demo``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from omnireuse.base.extras import check_extra
from omnireuse.base.terminal import notes
from omnireuse.cli.options import Quiet, Verbose
from omnireuse.cli.program import INTERRUPTED
from reference.demo.config import DemoConfig

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ python -m reference demo
$ python -m reference demo --video --prompts 2
$ python -m reference demo --steps 12 --guidance 1 --out out/short"""

IMAGES, CLIPS = DemoConfig(), DemoConfig(video=True)


def run(
    video: Annotated[bool, typer.Option("--video", help="Make short clips instead of images.")] = False,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of the pipeline (default: models/shapes-flux, with --video models/shapes-wan)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = IMAGES.out,
    steps: Annotated[
        int | None,
        typer.Option(
            help=f"Denoising steps of the full run (default: {IMAGES.full_steps}, with --video {CLIPS.full_steps})."
        ),
    ] = None,
    guidance: Annotated[
        float | None,
        typer.Option(
            help="Classifier-free guidance; 1 is none "
            f"(default: {IMAGES.full_guidance:g}, with --video {CLIPS.full_guidance:g})."
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Number of prompts.")] = IMAGES.prompts,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and of the noise.")] = IMAGES.seed,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Compare the full run, caches and fewer steps on a reference pipeline.

    Shows a table, and writes the pictures and a page to open in a browser
    (report.html) to a folder. Files of an earlier demo there are removed.
    """
    config = DemoConfig(video=video, model=model, out=out, steps=steps, guidance=guidance, prompts=prompts, seed=seed)
    check_extra("python -m reference demo", "lab")
    notes.print("loading the libraries")
    from reference.demo.command import run_demo

    return 0 if run_demo(config, Console()) else INTERRUPTED
