"""``omnireuse calibrate``: load a pipeline, search, write the profile, show what it grants."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from omnireuse.diffusion.calibration.arguments import check_call
from omnireuse.diffusion.calibration.calibrate import calibrate
from omnireuse.diffusion.calibration.journal import remove_journal
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.calibration.standing import Standing
from omnireuse.errors import ConfigError, StateError
from omnireuse.pipelines.source import Source, function_named
from omnireuse.records import check_writable
from omnireuse.terminal import notes, progress_bar

__all__ = ["profile_table", "run_calibrate"]


def run_calibrate(
    model: str | os.PathLike[str],
    prompts: Path,
    out: Path,
    console: Console,
    *,
    pictures: str | None = None,
    call: Mapping[str, Any] | None = None,
    fresh: bool = False,
    **options: Any,
) -> Profile:
    """Search for a pipeline on the prompts of a file, and write the profile to `out`.

    Scores are kept beside it, in a file with ".journal" behind its name: the same command again goes on where it was.
    The journal of a search that came to its end is removed.

    Args:
        model: folder, id on a hub, or ``package:function``.
        pictures: ``package:function`` for what reads the pipeline's results; None where they are read as usual.
        call: further arguments of every call of the pipeline.
        options: other arguments of `calibrate`.
        fresh: remove the journal of an earlier search first.

    Raises:
        ConfigError: no pipeline there, no prompts, or no way to write the profile: all found before the work begins.
        StateError: the profile could not be written in the end; its text is on the console then.
    """
    check_call(calibrate, call or {})
    lines = _prompts(prompts)
    check_writable(out)
    Source(given=model, device=options.get("device"), dtype=options.get("dtype")).check()
    if pictures is not None:
        options["pictures"] = function_named(pictures, "calibrate(--pictures")
    journal = out.with_name(f"{out.name}.journal")
    if fresh:
        remove_journal(journal)
    elif journal.is_file():
        notes.print(f"going on with the search in {journal}; --fresh begins anew", highlight=False, soft_wrap=True)
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]:>8}"),
        TimeElapsedColumn(),
    )
    with progress_bar(*columns) as progress:
        tasks: dict[str, Any] = {"loading": progress.add_task("loading", total=None, best="")}
        priced = False

        def watch(standing: Standing) -> None:
            nonlocal priced
            if "loading" in tasks:
                progress.remove_task(tasks.pop("loading"))
                notes.print(standing.pipeline, highlight=False, soft_wrap=True)
            if standing.doing not in tasks:
                tasks[standing.doing] = progress.add_task(standing.doing, best="")
            best = "" if standing.best is None else f"{standing.best:.1f} dB"
            progress.update(tasks[standing.doing], completed=standing.done, total=standing.total, best=best)
            if standing.seconds_left is not None and standing.done == standing.total and not priced:
                priced = True
                notes.print(
                    f"at most about {standing.runs + standing.runs_left:.0f} full runs, of which "
                    f"{standing.runs:.0f} are done; {standing.seconds_left / 60:.1f} minutes at the measured speed",
                    soft_wrap=True,
                )

        begun = time.monotonic()
        try:
            profile = calibrate(model, lines, journal=journal, progress=False, watch=watch, **options, **(call or {}))
        except KeyboardInterrupt:
            if not journal.is_file():
                raise
            raise KeyboardInterrupt(f"interrupted; {_kept(journal)}") from None
        except StateError:
            if journal.is_file():
                notes.print(f"the search has failed; {_kept(journal)}", highlight=False, soft_wrap=True)
            raise
        seconds = options.get("seconds")
        finished = profile.complete and (seconds is None or time.monotonic() - begun < seconds)
    console.print(profile_table(profile))
    try:
        profile.save(out)
    except StateError:
        console.print("the profile cannot be written; this is its text:", soft_wrap=True)
        console.print(profile.as_text(), markup=False, highlight=False, soft_wrap=True)
        raise
    if finished:
        journal.unlink(missing_ok=True)
    else:
        notes.print(f"the search is not finished; {_kept(journal)}", highlight=False, soft_wrap=True)
    plans = "1 plan" if len(profile.plans) == 1 else f"{len(profile.plans)} plans"
    found = "wrote" if profile.complete else f"interrupted; what was found so far, {plans}, is in"
    wanted = "quality" if any(math.isfinite(plan.promised) for plan in profile.plans.values()) else "speedup"
    use = f"omnireuse.enable(pipeline, profile={str(out)!r}, {wanted}=…)"
    console.print(f"\n{found} {out}; use it with {use}", soft_wrap=True)
    return profile


def _kept(journal: Path) -> str:
    return f"its scores are kept in {journal}: the same command goes on from there, --fresh begins anew"


def _prompts(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"calibrate(--prompts {str(path)!r}): cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"calibrate(--prompts {str(path)!r}): must be text in UTF-8 ({error})") from error
    if len(lines) < 2:
        raise ConfigError(
            f"calibrate(--prompts {str(path)!r}): must hold at least two prompts, one a line, got {len(lines)}"
        )
    return lines


def profile_table(profile: Profile) -> Table:
    """What the profile grants, a line for each budget."""
    searched, held_out = profile.num_prompts
    table = Table(
        title=f"{profile.num_inference_steps} steps; PSNR in dB on {searched} prompts searched with and "
        f"{held_out} held out; cost {profile.cost_in_runs:g} full runs",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        title_justify="left",
    )
    for heading in ("computed", "fewer\nsteps", "PSNR,\nsearched", "PSNR,\nheld out", "promised"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("forecaster", no_wrap=True)
    table.add_column("steps")
    for count, plan in sorted(profile.plans.items(), reverse=True):
        table.add_row(
            str(count),
            f"{profile.num_inference_steps / count:.2f}×",
            f"{plan.psnr:.1f}",
            f"{sum(plan.held_out) / len(plan.held_out):.1f}" if plan.held_out else "not judged",
            f"{plan.promised:.1f}" if math.isfinite(plan.promised) else "none",
            plan.forecaster,
            " ".join(map(str, plan.steps)),
        )
    return table
