"""Editing models: time of full and lean calls, bytes that are kept, and what lean calls change in the pictures.

    python -m bench references --parts time --device cuda --true [--seconds 170] [--out out/bench]
    python -m bench references --parts time [--device cpu] [--tiny]
    python -m bench references --parts memory
    python -m bench references --parts quality [--model models] [--parts-in runs/faces-edit] [--edits 48]

"time" takes random weights in bfloat16 and a target of 1024 × 1024 pixels with up to four references of that size.
`--true` takes whole models (24 and 41 GB), otherwise two blocks at the true width, `--tiny` none of that size, to try
the code. Seconds are those of the wall on a GPU, and of the process's own computation on a CPU. "memory" takes the
bytes of whole models on a device without data, and "quality" the editing pipelines of this project. Rows are written as
they are measured; another run adds those that are missing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bench import _reference_memory, _reference_quality, _reference_time
from bench._common import Row, new_parser, record_of
from bench._editing_size import EDITING
from bench._reference_figures import draw, show
from omnireuse.errors import ConfigError

TOP = Path(__file__).resolve().parents[1]
PARTS: Mapping[str, Any] = {
    "time": _reference_time.measure,
    "memory": _reference_memory.measure,
    "quality": _reference_quality.measure,
}


def main(arguments: list[str] | None = None) -> None:
    """Add the missing rows of these parts to ``references.json``; show tables, and draw ``references.png``."""
    parser = new_parser("references", __doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=list(EDITING), default=list(EDITING))
    parser.add_argument("--device", default="cpu")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--true", dest="size", action="store_const", const="true", default="few", help="whole models")
    size.add_argument("--tiny", dest="size", action="store_const", const="tiny", help="tiny models, to try the code")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=math.inf, help="nothing begins later than that")
    parser.add_argument("--model", type=Path, default=TOP / "models", help="holds faces-edit and faces-edit-8")
    parser.add_argument("--parts-in", type=Path, default=Path("runs", "faces-edit"), help="of the people's drawings")
    parser.add_argument("--edits", type=int, default=48, help="held-out edits")
    parser.add_argument("--show", action="store_true", help="only show the record")
    options = parser.parse_args(arguments)
    check(options)
    rows: list[Row] = []
    for part in options.parts:
        rows = record_of("references", options, PARTS[part])["rows"]
    if rows:
        show(rows, Console())
        draw(rows, options.out / "references.png")


def check(options: argparse.Namespace) -> None:
    """Whether this can be run here.

    Raises:
        ConfigError: no such device, whole models on a CPU, or numbers out of range.
    """
    where, is_cuda = "bench references", torch.device(options.device).type == "cuda"
    if is_cuda and not torch.cuda.is_available():
        raise ConfigError(
            f"{where}(--device {options.device}): needs a CUDA device, and torch {torch.__version__} sees none here; "
            "leave --device out, and few blocks are computed on the CPU"
        )
    if not is_cuda and options.size == "true":
        raise ConfigError(f"{where}(--device {options.device} --true): must be a CUDA device; leave --true out")
    if options.repeats < 1:
        raise ConfigError(f"{where}(--repeats {options.repeats}): must be at least 1")
