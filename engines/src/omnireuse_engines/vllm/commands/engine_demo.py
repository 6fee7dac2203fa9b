"""``omnireuse engine-demo``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from omnireuse.cli.options import Quiet, Verbose

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse engine-demo
$ omnireuse engine-demo --users 6 --turns 3 --blocks 40"""


def run(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/engine-demo"),
    users: Annotated[int, typer.Option(min=1, help="Conversations side by side.")] = 5,
    turns: Annotated[int, typer.Option(min=1, help="Questions of each user.")] = 4,
    blocks: Annotated[
        int, typer.Option(min=1, help="Blocks of the KV cache; with few of them, requests are preempted.")
    ] = 36,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is said and shown.")] = 0,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Serve conversations over images in a small engine, with the engine caches off and on.

    The outputs must be the same: the exit status is 1 if they differ.
    """
    from omnireuse_engines.vllm.engine_demo.command import run_engine_demo

    made = run_engine_demo(Console(), out=out, users=users, turns=turns, num_blocks=blocks, seed=seed)
    return 0 if made.is_identical else 1
