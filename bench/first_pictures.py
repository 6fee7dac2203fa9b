"""How long a user waits for the first pictures, which tuning measures, beside the same calls without reuse.

    python -m bench first_pictures

Wall-clock of each of the first calls after `enable` with an empty cache folder, divided by the median of plain calls
that are made in turn with them. Each draw begins anew with other prompts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

import omnireuse
from bench._common import new_table, no_warnings, write_record
from reference.case import FACES, IMAGES, Case

RESULTS = Path(__file__).parent / "results"
STEPS, PICTURES = 28, 5


def draw(case: Case, pipeline: Any, seed: int) -> list[float]:
    """Time of each of the first pictures over that of a plain one."""
    prompts = [case.caption(scene) for scene in case.held_out(PICTURES, seed=seed)]

    def seconds(number: int) -> float:
        started = time.perf_counter()
        case.generate(pipeline, [prompts[number]], [seed + number], num_inference_steps=STEPS)
        return time.perf_counter() - started

    seconds(0)  # the first call of all allocates
    plain = [seconds(number) for number in range(PICTURES)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OMNIREUSE_CACHE_DIR"] = folder
        with omnireuse.enable(pipeline):
            tuned = [seconds(number) for number in range(PICTURES)]
    return [each / statistics.median(plain) for each in tuned]


def main(options: list[str] | None = None) -> None:
    """Measure each case, print the table and write the record."""
    parser = argparse.ArgumentParser(prog="bench first_pictures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=3, help="draws of first pictures (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the record (default: %(default)s)")
    given = parser.parse_args(options)
    os.environ["OMNIREUSE_TUNE"] = "1"
    table = new_table("time of each picture over the usual", "", *map(str, range(1, PICTURES + 1)), "first three")
    record: dict[str, list[list[float]]] = {}
    with no_warnings():
        for case in (FACES, IMAGES):
            pipeline = case.load(case.find(None))
            pipeline.set_progress_bar_config(disable=True)
            draws = record[case.name] = [draw(case, pipeline, 700 + 100 * number) for number in range(given.draws)]
            shown = [*zip(*draws, strict=True), [sum(each[:3]) / 3 for each in draws]]
            table.add_row(case.name, *(f"{statistics.median(c):.1f} ({min(c):.1f} to {max(c):.1f})" for c in shown))
    Console(width=130).print(table)
    write_record({"steps": STEPS, "times": record}, given.out, "first_pictures")
