"""``omnireuse cache``: the tuned plans on this machine."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from omnireuse.base.validation import counted
from omnireuse.cli.options import Quiet, Verbose
from omnireuse.errors import OmniReuseError

if TYPE_CHECKING:
    from omnireuse.tuning.configuration import Configuration

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse cache list
$ omnireuse cache clear"""


def run(
    action: Annotated[Literal["list", "clear"], typer.Argument(help="Show the plans, or delete all of them.")],
    *,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Show or delete the tuned plans in the cache folder.

    OMNIREUSE_CACHE_DIR names another folder.
    """
    from omnireuse.tuning.store import Store

    store = Store()
    if action == "clear":
        typer.echo(f"deleted {counted(store.clear(), 'file')} in {store.path}")
        return 0
    files, unfinished = store.files(), store.unfinished()
    for file in (*files, *unfinished):
        day = datetime.date.fromtimestamp(file.stat().st_mtime).isoformat()
        try:
            words = _runs(file, is_plan=file in files)
        except (OmniReuseError, ValueError, OSError):
            words = "damaged, measured anew when it is needed"
        typer.echo(f"{day}  {words}  {file.name}")
    typer.echo(f"{counted(len(files), 'file')} in {store.path}, {len(unfinished)} measured in part beside it")
    return 0


def _runs(file: Path, *, is_plan: bool) -> str:
    """The runs that a file is for, and its plans or how far they are measured."""
    from omnireuse.tuning.store import read_kept, read_measured

    if is_plan:
        profile, runs = read_kept(file.read_bytes(), file.stem, file.name)
        found = f"{' or '.join(map(str, profile.plans))} of {len(runs.noises)} steps"
    else:
        measured, runs = read_measured(file.read_bytes(), file.stem, file.name)
        found = f"{len(runs.noises)} steps, {counted(len(measured.calls), 'picture')} measured so far"
    aims = "".join(f", {name} {runs.call[name]}" for name in ("quality", "tolerance") if name in runs.call)
    return f"{runs.conditions.model}, {_size(runs)}, {_guidance(runs)}, {found}{aims}, {runs.scheduler}"


def _size(runs: Configuration) -> str:
    """The size of pictures or clips; that of the latents if the call names none."""
    sides = [runs.call.get(name, "") for name in ("height", "width")]
    if not all(side.isdecimal() for side in sides):
        return f"latents of {' × '.join(map(str, runs.shape))}"
    frames = runs.call.get("num_frames", "")
    return f"{' × '.join(sides)}{f' × {frames} frames' if frames.isdecimal() else ''}"


def _guidance(runs: Configuration) -> str:
    from omnireuse.pipelines.call_arguments import read_argument, scales_of

    scales = scales_of({name: read_argument(text) for name, text in runs.call.items()})
    shown = [f"{value:g}" for value in scales.values() if value > 1]
    return f"guidance {' and '.join(shown)}" if shown else "no guidance"
