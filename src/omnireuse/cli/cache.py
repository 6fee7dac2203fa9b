"""``omnireuse cache``: the tuned plans on this machine."""

from __future__ import annotations

import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated

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


class Action(str, Enum):
    """The action on the plans."""

    list = "list"
    clear = "clear"


def run(
    action: Annotated[Action, typer.Argument(help="Show the plans, or delete all of them.")],
    *,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Show or delete the tuned plans in the cache folder.

    OMNIREUSE_CACHE_DIR names another folder.
    """
    from omnireuse.tuning.store import Store, read_kept

    store = Store()
    if action is Action.clear:
        typer.echo(f"deleted {counted(store.clear(), 'file')} in {store.path}")
        return 0
    files = store.files()
    for file in files:
        day = datetime.date.fromtimestamp(file.stat().st_mtime).isoformat()
        try:
            profile, runs = read_kept(file.read_bytes(), file.stem, file.name)
        except (OmniReuseError, OSError):
            typer.echo(f"{day}  damaged, measured anew when it is needed  {file.name}")
            continue
        counts = " or ".join(map(str, profile.plans))
        total = profile.num_inference_steps
        runs_text = f"{_size(runs)}, {_guidance(runs)}, {counts} of {total} steps"
        typer.echo(f"{day}  {profile.model}, {runs_text}, {profile.scheduler}  {file.name}")
    typer.echo(f"{counted(len(files), 'file')} in {store.path}")
    return 0


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
