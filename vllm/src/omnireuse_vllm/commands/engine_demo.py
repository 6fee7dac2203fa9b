"""``omnireuse engine-demo``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from omnireuse.cli.options import Quiet, Verbose
from omnireuse_vllm.engine_demo.config import EngineDemoConfig

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse engine-demo
$ omnireuse engine-demo --users 6 --turns 3 --blocks 40"""

USUAL = EngineDemoConfig()


def run(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = USUAL.out,
    users: Annotated[int, typer.Option(help="Conversations side by side.")] = USUAL.users,
    turns: Annotated[int, typer.Option(help="Questions of each user.")] = USUAL.turns,
    blocks: Annotated[
        int, typer.Option(help="Blocks of the KV cache; with few of them, requests are preempted.")
    ] = USUAL.blocks,
    seed: Annotated[int, typer.Option(help="Seed of what is said and shown.")] = USUAL.seed,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Serve conversations over images in a small engine, with the engine caches off and on.

    The outputs must be the same: the exit status is 1 if they differ.
    """
    config = EngineDemoConfig(out=out, users=users, turns=turns, blocks=blocks, seed=seed)
    from omnireuse_vllm.engine_demo.command import run_engine_demo

    return 0 if run_engine_demo(config, Console()).identical else 1
