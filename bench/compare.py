"""The reference pipelines with this library, with other libraries' caches and with plain fewer steps.

    python -m bench compare [--case shapes-flux] [--steps 28 50] [--guidance 6 1] [--profile FILE …] [--only METHOD …]

Held-out captions that neither training nor any search has seen, each picture held against the full run from the same
noise and read by the attribute checker.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench._common import new_parser
from omnireuse.errors import StateError
from omnireuse_lab.compare.methods import chosen_methods, own_methods
from omnireuse_lab.compare.run import compare_all, results_file, show
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.peers import peers_among
from reference.case import CASES, CLIPS, IMAGES
from reference.workload import load_quietly, reference_workload

SEED = 9000
"""Of captions and noise; searches keep below 5000."""
CALIBRATION = 24
"""Captions that other methods may calibrate themselves on; none is compared."""


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``compare.json``, its page and the tables."""
    parser = new_parser("compare", __doc__)
    parser.add_argument("--case", nargs="+", choices=CASES, default=[IMAGES.name, CLIPS.name])
    parser.add_argument("--steps", type=int, nargs="+", default=[28, 50])
    parser.add_argument("--guidance", type=float, nargs="+", default=[6.0, 1.0])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--time", type=int, default=4, metavar="N", help="prompts for the wall-clock; 0 leaves it out")
    parser.add_argument("--profile", type=Path, nargs="+", default=[])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="METHOD", help="methods or families: ours, peer, baseline"
    )
    options = parser.parse_args(arguments)
    comparison = compare_all(
        workloads(options),
        chosen_methods(options.profile, options.only, own_methods(peers_among(options.only))),
        results_file(options.out),
        timed=options.time,
        command=f"python -m bench compare --prompts {options.prompts} --time {options.time}",
    )
    show(comparison, results_file(options.out), Console())
    if not comparison.complete:
        raise StateError(f"compare: interrupted; {options.out} holds what was measured")


def workloads(options: argparse.Namespace) -> Iterator[Workload]:
    """Every case that was chosen, each pipeline loaded once."""
    for name in options.case:
        case = CASES[name]
        pipeline = load_quietly(case, case.find(None))
        for steps in options.steps:
            for guidance in options.guidance:
                yield reference_workload(
                    case,
                    pipeline,
                    steps=steps,
                    guidance=guidance,
                    prompts=options.prompts,
                    seed=SEED,
                    calibration=CALIBRATION,
                )


if __name__ == "__main__":
    main()
