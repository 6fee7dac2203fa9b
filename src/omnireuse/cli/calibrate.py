"""``omnireuse calibrate``: load a pipeline, search, write the profile, show its plans."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from omnireuse import messages
from omnireuse.base.records import check_writable
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
    whole_numbers,
)
from omnireuse.cli.program import INTERRUPTED
from omnireuse.errors import ConfigError, StateError

if TYPE_CHECKING:
    from omnireuse.profiles.profile import Profile

__all__ = ["EXAMPLES", "profile_table", "run"]

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
    from omnireuse.calibration import calibrate as calibration
    from omnireuse.pipelines.source import Source, function_named

    for name in call or {}:
        if name in inspect.signature(calibration.calibrate).parameters and name != "num_inference_steps":
            raise ConfigError(messages.CALL_OPTION, name=name)
    check_writable(out)
    if out.exists() and not force:
        raise ConfigError(messages.OUT_EXISTS, out=str(out))
    source = pipeline_source("calibrate", model, pipeline)
    Source(given=source, device=device, dtype=dtype).check()
    profile = calibration.calibrate(
        source,
        texts,
        steps=steps,
        computed_steps=computed,
        batch_size=batch,
        fit_prompts=fit_prompts,
        seed=seed,
        device=device,
        dtype=dtype,
        pictures=None if pictures is None else function_named(pictures, "calibrate(--pictures"),
        progress=not notes.quiet,
        **(call or {}),
    )
    console = Console()
    console.print(profile_table(profile))
    try:
        profile.save(out)
    except StateError:
        console.print("the profile cannot be written; this is its text:", soft_wrap=True)
        console.print(profile.as_text(), markup=False, highlight=False, soft_wrap=True)
        raise
    plans = "1 plan" if len(profile.plans) == 1 else f"{len(profile.plans)} plans"
    found = "wrote" if profile.complete else f"interrupted; what was found so far, {plans}, is in"
    target = "quality" if any(math.isfinite(plan.promised) for plan in profile.plans.values()) else "speedup"
    use = f"omnireuse.enable(pipeline, profile={str(out)!r}, {target}=…)"
    console.print(f"\n{found} {out}; use it with {use}", soft_wrap=True)
    return 0 if profile.complete else INTERRUPTED


def profile_table(profile: Profile) -> Table:
    """The plans of the profile, one in a line."""
    searched, held_out = profile.num_prompts
    table = Table(
        title=f"{profile.num_inference_steps} steps; PSNR in dB on {searched} prompts searched with and "
        f"{held_out} held out; cost {profile.cost_in_runs:g} full runs",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        title_justify="left",
    )
    for heading in ("computed", "fewer\nsteps", "mean,\nsearched", "mean,\nheld out", "nine of\nten reach"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("forecaster", no_wrap=True)
    table.add_column("steps")
    for count, plan in sorted(profile.plans.items(), reverse=True):
        table.add_row(
            str(count),
            f"{profile.num_inference_steps / count:.2f}×",
            "not judged" if plan.psnr is None else f"{plan.psnr:.1f}",
            *(cell.removesuffix(" dB") for cell in plan.shown),
            plan.forecaster,
            " ".join(map(str, plan.steps)),
        )
    return table
