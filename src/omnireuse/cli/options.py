"""The options that every command takes, before its name or after it."""

from __future__ import annotations

from typing import Annotated

import typer

from omnireuse.terminal import be_quiet, be_verbose

__all__ = ["Quiet", "Verbose"]


def _quiet(asked: bool) -> None:
    if asked:
        be_quiet()


def _verbose(asked: bool) -> None:
    if asked:
        be_verbose()


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only results and errors.", callback=_quiet)]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show more of what happens.", callback=_verbose)]
