"""The reference engine over one random trace, each engine cache off and on: work done, wall-clock, equal answers.

    python -m bench engine [--requests 1000] [--repeats 3] [--out out/bench]

The runs alternate, so that what else the machine does falls on all of them. The model is tiny and runs request by
request: its encoder calls and prefilled tokens are what yours would do, its times are not.
"""

from __future__ import annotations

import math
import platform
import statistics
from typing import Any

from rich.console import Console
from rich.progress import Progress

import omnireuse
from bench._common import new_parser, new_table, write_record
from omnireuse_engines.vllm.engine import Engine, EngineConfig, Result, TinyOmniModel
from omnireuse_engines.vllm.engine.request import largest_difference
from omnireuse_engines.vllm.engine.trace import random_trace, serve

OFF = "caches off"
RUNS: dict[str, dict[str, bool]] = {
    OFF: {"share_encodes": False, "share_prefixes": False},
    "encodes shared": {"share_encodes": True, "share_prefixes": False},
    "prefixes shared": {"share_encodes": False, "share_prefixes": True},
    "both": {"share_encodes": True, "share_prefixes": True},
}
KINDS = ("encode", "prefill", "decode", "prefix hit", "encoder hit", "preempt", "abort", "finish")


def main(options: list[str] | None = None) -> None:
    """Serve, compare, print a table and write ``engine.json``."""
    parser = new_parser("engine", __doc__)
    parser.add_argument("--requests", type=int, default=1_000, help="requests of the trace (default: 1000)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument(
        "--blocks", type=int, default=16, help="blocks of the KV cache; few make preemptions (default: 16)"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides the trace (default: 0)")
    arguments = parser.parse_args(options)
    console, model = Console(), TinyOmniModel(seed=0)
    trace = random_trace(model, arguments.seed, arguments.requests)
    list(serve(Engine(model), random_trace(model, arguments.seed, 5)))  # warm-up
    engines: dict[str, list[Engine]] = {name: [] for name in RUNS}
    results: dict[str, dict[int, Result]] = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("serving", total=len(RUNS) * arguments.repeats)
        for _ in range(arguments.repeats):
            for name, caches in RUNS.items():
                engine = Engine(model, EngineConfig(num_blocks=arguments.blocks, **caches))
                results[name] = dict(serve(engine, trace))
                engines[name].append(engine)
                progress.update(bar, advance=1)
    record = {name: row_of(name, engines, results) for name in RUNS}
    show(record, len(trace), arguments.repeats, console)
    about = {
        "omnireuse": omnireuse.__version__, "python": platform.python_version(), "machine": platform.machine(),
        "requests": len(trace), "blocks": arguments.blocks, "seed": arguments.seed,
    }  # fmt: skip
    write_record(about | {"runs": record}, arguments.out, "engine")
    if not all(row["identical"] for row in record.values()):
        raise SystemExit("bench engine: an answer differs from the one without caches")


def row_of(name: str, engines: dict[str, list[Engine]], results: dict[str, dict[int, Result]]) -> dict[str, Any]:
    """What one run did, and how it compares with the one without caches."""
    difference = largest_difference(results[name], results[OFF])
    seconds = [engine.seconds for engine in engines[name]]
    speedups = [off.seconds / own for off, own in zip(engines[OFF], seconds, strict=True)]
    return {
        "counts": {kind: engines[name][0].counts[kind] for kind in KINDS},
        "steps": engines[name][0].num_steps,
        "seconds": seconds,
        "speedups": speedups,
        "compared": len(results[name].keys() & results[OFF].keys()),
        "identical": math.isfinite(difference),
        "largest_difference": difference if math.isfinite(difference) else None,
    }


def show(record: dict[str, dict[str, Any]], num_requests: int, repeats: int, console: Console) -> None:
    """One row a run; times as median (least–most)."""
    title = f"{num_requests:,} requests, {repeats} runs of each"
    headings = ("encoder calls", "prefilled tokens", "preemptions", "seconds", "speed-up", "same answers")
    table = new_table(title, "", *headings)
    for name, row in record.items():
        bits = f"states within {row['largest_difference']:.0e}" if row["largest_difference"] else "bit for bit"
        same = f"{row['compared']:,}, {bits}" if row["identical"] else "no"
        table.add_row(
            name, f"{row['counts']['encode']:,}", f"{row['counts']['prefill']:,}", f"{row['counts']['preempt']:,}",
            spread(row["seconds"]), spread(row["speedups"]), same,
        )  # fmt: skip
    console.print(table)


def spread(values: list[float]) -> str:
    """Median (least–most)."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    main()
