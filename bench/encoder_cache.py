"""The encoder cache managers beside vLLM's own: time an access, bytes an entry, growth with entries, and hit ratios.

    python -m bench encoder_cache [--operations 1000000] [--vllm-venv FOLDER] [--out out/bench]

Speed: the same trace (each item once, then popular ones) through every manager in turn, in one process, several rounds.
Times are processor time of one thread. An access is one input's whole life: asked for, planned where missing, freed;
requests of 4 inputs, one drain each.
vLLM's manager takes part if the venv of scripts/vllm_venv.sh is there; then that venv's Python times everything.
Hit ratios: three made-up traces through the shared cache, beside LRU and the clairvoyant bound.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

import omnireuse
from bench._common import new_parser, new_table, write_record
from bench._manager_speed import VLLM
from omnireuse.errors import ConfigError
from omnireuse_engines.vllm.replay.command import bound_in_words, scores_tables
from omnireuse_engines.vllm.replay.generate import KINDS, make_trace
from omnireuse_engines.vllm.replay.run import BOUND, replay

TOP = Path(__file__).parents[1]
SOURCES = os.pathsep.join([str(TOP / "src"), str(TOP / "engines" / "src")])
DEFAULT_VENV = Path(os.environ.get("TMPDIR", tempfile.gettempdir())) / "omnireuse-vllm-venv"


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``encoder_cache.json`` and the tables."""
    parser = new_parser("encoder_cache", __doc__)
    parser.add_argument("--operations", type=int, default=1_000_000, help="timed accesses, all rounds together")
    parser.add_argument("--entries", type=int, default=4096, help="items that the cache holds meanwhile")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--scales", type=int, nargs="*", default=[10**3, 10**4, 10**5, 10**6], help="entries")
    parser.add_argument("--accesses", type=int, default=6000, help="of each trace for hit ratios")
    parser.add_argument("--vllm-venv", type=Path, default=DEFAULT_VENV, help="see scripts/vllm_venv.sh")
    options = parser.parse_args(arguments)
    for name in ("operations", "entries", "repeats", "accesses"):
        if getattr(options, name) < 1:
            raise ConfigError(f"bench encoder_cache(--{name}): must be ≥ 1, got {getattr(options, name)}")
    console = Console()
    speed = timed(options, console)
    ratios = {kind: hit_ratios(kind, options.accesses, console) for kind in KINDS}
    environment = {
        "omnireuse": omnireuse.__version__, "python": speed["python"], "machine": platform.machine(),
        "vllm_compared": VLLM in speed["seconds"],
    }  # fmt: skip
    command = f"python -m bench encoder_cache --operations {options.operations} --entries {options.entries}"
    record = {"command": command, "environment": environment, "speed": speed, "hit_ratios": ratios}
    write_record(record, options.out, "encoder_cache")


def timed(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Time in the venv that has vLLM, or else here and say so."""
    python = options.vllm_venv / "bin" / "python"
    if not python.exists():
        console.print(f"[yellow]no vLLM:[/] {python} is missing; scripts/vllm_venv.sh {options.vllm_venv} builds it")
        python = Path(sys.executable)
    wanted = {name: getattr(options, name) for name in ("entries", "repeats", "scales")}
    wanted |= {
        "operations": -(-options.operations // options.repeats),
        "scale_operations": options.operations // 20 + 1,
    }
    done = subprocess.run(
        [python, "-m", "bench._manager_speed", json.dumps(wanted)],
        cwd=TOP, env=os.environ | {"PYTHONPATH": SOURCES}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    # vLLM logs to the same stream when it is imported; the result is the last line.
    speed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if VLLM not in speed["seconds"]:
        console.print("[yellow]no figures of vLLM's manager:[/] vllm cannot be imported by", python)
    show_speed(speed, options, console)
    return speed


def show_speed(speed: dict[str, Any], options: argparse.Namespace, console: Console) -> None:
    """Time, spread and bytes; then growth."""
    title = f"{options.operations:,} accesses at {options.entries:,} entries, {options.repeats} rounds"
    table = new_table(title, "manager", "µs / access", "accesses / s", "time / vLLM's", "bytes / entry")
    for name, seconds in speed["seconds"].items():
        median = statistics.median(seconds)
        ratios = [own / other for own, other in zip(seconds, speed["seconds"].get(VLLM, ()), strict=False)]
        table.add_row(
            short(name),
            f"{median * 1e6:.2f} ({min(seconds) * 1e6:.2f}–{max(seconds) * 1e6:.2f})",
            f"{1 / median:,.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else "–",
            f"{speed['bytes'][name]:.0f}",
        )
    console.print(table)
    if options.scales:
        table = new_table("µs an access by number of entries", "manager", *(f"{n:,}" for n in options.scales))
        for name, by_entries in speed["by_entries"].items():
            table.add_row(short(name), *(f"{by_entries[str(n)] * 1e6:.2f}" for n in options.scales))
        console.print(table)


def short(name: str) -> str:
    """The name of a manager without what all share."""
    return name if name == "EncoderCacheManager" else name.replace("EncoderCacheManager", "…")


def hit_ratios(kind: str, num_accesses: int, console: Console) -> dict[str, Any]:
    """Replay one made-up trace, with a mix of sizes."""
    trace = make_trace(kind, num_accesses=num_accesses, seed=0)
    scores = replay(trace)
    for table in scores_tables(f"hit ratio, {kind}, by capacity in embeddings", scores, lambda score: score.hit_ratio):
        console.print(table)
    console.print(f"{BOUND}: {bound_in_words(trace)}", soft_wrap=True, highlight=False)
    return {"bound": bound_in_words(trace), "scores": [asdict(score) for score in scores]}


if __name__ == "__main__":
    main()
