"""``omnireuse calibrate``: load a pipeline, search, write the profile, show its plans."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from omnireuse.base.records import check_writable
from omnireuse.base.terminal import notes
from omnireuse.calibration.calibrate import calibrate
from omnireuse.calibration.progress import Progress
from omnireuse.errors import ConfigError, StateError
from omnireuse.pipelines.call import refuse_reserved
from omnireuse.pipelines.source import Source, function_named
from omnireuse.profiles.profile import Profile

__all__ = ["profile_table", "run_calibrate"]


def run_calibrate(
    model: str | os.PathLike[str],
    prompts: Sequence[str],
    out: Path,
    console: Console,
    *,
    pictures: str | None = None,
    call: Mapping[str, Any] | None = None,
    force: bool = False,
    **options: Any,
) -> Profile:
    """Search for a pipeline on these prompts, and write the profile to `out`.

    Args:
        model: folder, id on a hub, or ``package:function``.
        pictures: ``package:function`` that reads the pipeline's results; None for results in the form of diffusers.
        call: further arguments of every call of the pipeline.
        force: write the profile over a file that is there already.
        options: other arguments of `calibrate`.

    Raises:
        ConfigError: no pipeline, no prompts, a profile that is there already, or no way to write it, found before the
            work begins.
        StateError: the profile cannot be written in the end; its text is on the console then.
    """
    _check_call(call or {})
    check_writable(out)
    if out.exists() and not force:
        raise ConfigError(
            f"calibrate(--out {str(out)!r}): --out must be new, got a file that is there already; give another "
            "name, or --force to write over it"
        )
    Source(given=model, device=options.get("device"), dtype=options.get("dtype")).check()
    if pictures is not None:
        options["pictures"] = function_named(pictures, "calibrate(--pictures")
    shown = notes.is_terminal and not notes.quiet
    profile = calibrate(model, prompts, progress=shown, watch=_Notes(bar=shown), **options, **(call or {}))
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
    return profile


class _Notes:
    """Prints what computes, unless a progress bar does, and the cost of the search as soon as it can be estimated."""

    def __init__(self, *, bar: bool) -> None:
        self._described, self._estimated = bar, False

    def __call__(self, progress: Progress) -> None:
        if not self._described:
            self._described = True
            notes.print(progress.pipeline, highlight=False, soft_wrap=True)
        if self._estimated or progress.seconds_left is None or progress.doing != "plans":
            return
        self._estimated = True
        with tqdm.external_write_mode(file=sys.stderr):
            notes.print(
                f"about {progress.runs + progress.runs_left:.0f} full runs in all, of which {progress.runs:.0f} are "
                f"done; {progress.seconds_left / 60:.1f} minutes at the measured speed",
                soft_wrap=True,
            )


def _check_call(call: Iterable[str]) -> None:
    refuse_reserved("calibrate", call)
    for name in call:
        if name in inspect.signature(calibrate).parameters and name != "num_inference_steps":
            raise ConfigError(
                f"calibrate(--call): {name} is an option of the search, not an argument of the pipeline; see omnireuse "
                "calibrate --help"
            )


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
