"""``omnireuse cache``: the tuned plans on this machine."""

from __future__ import annotations

import datetime
from enum import Enum
from typing import Annotated

import typer

from omnireuse.cli.options import Quiet, Verbose

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
    from omnireuse.errors import OmniReuseError
    from omnireuse.tuning.store import Store, read_plans

    store = Store()
    if action is Action.clear:
        typer.echo(f"deleted {store.clear()} files in {store.path}")
        return 0
    files = store.files()
    for file in files:
        day = datetime.date.fromtimestamp(file.stat().st_mtime).isoformat()
        try:
            profile = read_plans(file.read_bytes(), file.stem, file.name)
        except (OmniReuseError, OSError):
            typer.echo(f"{day}  damaged, measured anew when it is needed  {file.name}")
            continue
        counts = " or ".join(map(str, profile.plans))
        total = profile.num_inference_steps
        typer.echo(f"{day}  {profile.model}, {counts} of {total} steps, {profile.scheduler}  {file.name}")
    typer.echo(f"{len(files)} files in {store.path}")
    return 0
