"""``omnireuse replay``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from omnireuse.cli.options import Quiet, Verbose, whole_numbers
from omnireuse.errors import ConfigError

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse replay trace.csv --make zipf
$ omnireuse replay trace.csv
$ omnireuse replay trace.csv --capacity 8192,16384"""


def run(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="CSV or JSON lines of accesses: key, size, and maybe cost, request.")
    ],
    capacity: Annotated[
        Any,
        typer.Option(
            parser=whole_numbers,
            metavar="N,N,...",
            help="Sizes of the cache in embeddings (default: shares of what all items take).",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results (default: out/replay).")] = None,
    make: Annotated[
        str | None, typer.Option(metavar="KIND", help="Write TRACE instead: zipf, scan or multi-turn.")
    ] = None,
    accesses: Annotated[int | None, typer.Option(help="Accesses of a trace to make (default: 20000).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a trace to make (default: 0).")] = None,
    size: Annotated[
        int | None, typer.Option(help="Embeddings of every item of a trace to make (default: a mix).")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Replay a trace of accesses through the shared encoder cache.

    Shows the hit ratio beside those of LRU and of the best possible policy.
    With --make, a trace is written instead.
    """
    unread: dict[str, Any] = {"accesses": accesses, "seed": seed, "size": size}
    must, got = "come with --make", "no --make"
    if make is not None:
        unread = {"capacity": capacity, "out": out}
        must, got = "not come with --make, which replays nothing", f"--make {make}"
    for name, value in unread.items():
        if value is not None:
            raise ConfigError(f"replay(--{name} {value}): --{name} must {must}, got {got}")
    from omnireuse_engines.vllm.replay.command import run_make, run_replay

    if make is None:
        run_replay(trace, Console(), capacities=capacity, out=out or Path("out/replay"))
    else:
        run_make(
            trace,
            Console(),
            kind=make,
            num_accesses=20_000 if accesses is None else accesses,
            seed=seed or 0,
            size=size,
        )
    return 0
