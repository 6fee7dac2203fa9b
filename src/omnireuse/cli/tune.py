"""``omnireuse tune``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnireuse.cli.options import Call, Device, Dtype, Model, Pipeline, Quiet, Verbose, pipeline_source, read_prompts

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse tune models/shapes-flux --prompts prompts.txt
$ omnireuse tune MODEL --prompts prompts.txt --speedup 3
$ omnireuse tune MODEL --prompts prompts.txt --quality 40
$ omnireuse tune MODEL --prompts prompts.txt --call '{"height": 512}'"""


def run(
    model: Model = None,
    *,
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="Text file with one prompt a line; the first three are measured.")
    ],
    pictures: Annotated[int, typer.Option(min=1, help="How many prompts are measured.")] = 3,
    speedup: Annotated[float | None, typer.Option(help="All steps over computed steps (default: 2).")] = None,
    computed: Annotated[int | None, typer.Option(help="How many steps are computed, in place of --speedup.")] = None,
    quality: Annotated[float | None, typer.Option(help="PSNR in dB of nine of ten pictures.")] = None,
    tolerance: Annotated[float | None, typer.Option(help="Error of nine of ten final latents: 0.05 is 5 %.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    pipeline: Pipeline = None,
    device: Device = None,
    dtype: Dtype = None,
    call: Call = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Measure a pipeline ahead of time, and keep the plan in the cache folder.

    Give --call the arguments of your later calls. Every pipeline with the same
    weights and arguments then reuses from its first picture on.
    """
    source = pipeline_source("tune", model, pipeline)
    texts = read_prompts(prompts, "tune(--prompts")[:pictures]
    from omnireuse.calibration.tune import tune

    profile = tune(
        source,
        texts,
        speedup=speedup,
        computed_steps=computed,
        quality=quality,
        tolerance=tolerance,
        seed=seed,
        device=device,
        dtype=dtype,
        progress=not quiet,
        **(call or {}),
    )
    (plan,) = profile.plans.values()
    if not plan.weights:
        typer.echo("no plan was better than the untuned default, which stays")
        return 0
    typer.echo(
        f"{len(plan.steps)} of {profile.num_inference_steps} steps are computed: {' '.join(map(str, plan.steps))}"
    )
    return 0
