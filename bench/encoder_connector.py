"""The encoder outputs' connector beside vLLM's own example: what a step waits for, and the whole way out and back.

    python -m bench encoder_connector --vllm-venv FOLDER [--redis redis://localhost:6379/0] [--out out/bench]

Runs in the venv of scripts/vllm_venv.sh, on its CPU. The example connector writes and reads in the step. Ours writes
from a thread and reads ahead, while the request waits and others run; "whole" is until the last item is written, or in
the encoder cache. Both stores keep the same items, one a step, and are opened anew between writing and reading.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from pathlib import Path

from rich.console import Console

from bench._common import new_parser, new_table, write_record
from bench.encoder_cache import DEFAULT_VENV, SOURCES, TOP
from omnireuse.errors import ConfigError


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``encoder_connector.json`` and the tables."""
    parser = new_parser("encoder_connector", __doc__)
    parser.add_argument("--embeds", type=int, nargs="+", default=[576, 2880], help="embeddings an item")
    parser.add_argument("--width", type=int, default=4096, help="numbers an embedding, in bfloat16")
    parser.add_argument("--items", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where the disk is; the temporary folder")
    parser.add_argument("--redis", default=None, help="URL of a server to measure, too")
    parser.add_argument("--vllm-venv", type=Path, default=DEFAULT_VENV, help="see scripts/vllm_venv.sh")
    options = parser.parse_args(arguments)
    python = options.vllm_venv / "bin" / "python"
    if not python.exists():
        raise ConfigError(
            f"bench encoder_connector(--vllm-venv {options.vllm_venv}): must be a venv with vLLM, {python} is missing; "
            "scripts/vllm_venv.sh builds it"
        )
    wanted = {name: getattr(options, name) for name in ("embeds", "width", "items", "rounds", "redis")}
    wanted["folder"] = None if options.folder is None else str(options.folder)
    path = os.pathsep.join([SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [python, "-m", "bench._connector_speed", json.dumps(wanted)],
        cwd=TOP, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    measured = json.loads(done.stdout.splitlines()[-1])  # vLLM logs to the same stream
    for num_embeds, places in measured["seconds"].items():
        megabytes = int(num_embeds) * options.width * 2 / 1e6
        table = new_table(
            f"ms an item of {num_embeds} × {options.width} ({megabytes:.1f} MB): median (least–most) of "
            f"{options.rounds} rounds of {options.items}",
            "place", *next(iter(places.values())),
        )  # fmt: skip
        for place, series in places.items():
            table.add_row(place, *(_ms(values) for values in series.values()))
        Console(width=120).print(table)
    for place, values in measured["idle_seconds"].items():
        print(f"an idle step, {place}: {statistics.median(values) * 1e6:.1f} µs")
    options_used = {name: value for name, value in wanted.items() if name not in ("folder", "redis")}
    write_record(
        {"command": "python -m bench encoder_connector", "options": options_used, **measured},
        options.out, "encoder_connector",
    )  # fmt: skip


def _ms(values: list[float]) -> str:
    return f"{statistics.median(values) * 1e3:.2f} ({min(values) * 1e3:.2f}–{max(values) * 1e3:.2f})"
