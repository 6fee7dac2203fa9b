"""What a tuned `tolerance=` keeps on models unlike the project's, whose pictures differ.

    python -m bench kept [--case pixel_flux …] [--guidance guided] [--tolerances 0.1] [--shared ../shared]

Relative L1 error of what a pipeline without a decoder returns against its full run of 28 steps, after some captions of
its own that nothing is judged on. A tolerance is kept where nine of ten captions are within it.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

import omnireuse
from bench._common import new_table
from bench._resumable import Row, Rows, parser_of, record_of
from bench.harm import TOP, PixelFlux, Unlike
from bench.tolerance import SHARE, STEPS
from bench.tune import cache_in
from omnireuse.tuning.budget import JUDGED
from omnireuse.tuning.full_run import relative_errors

TOLERANCES = (0.05, 0.1, 0.2)
RUNS = {"pixel_flux": ("shift 1.5", "shift 3"), "movements": ("shift 1", "shift 3")}


class Model:
    """One model under one shift and guidance.

    Args:
        part: its case, run and guidance.
        count: how many captions there are.
        shared: the folder with its weights, where they are not in the repository.
    """

    def __init__(self, part: Row, count: int, shared: Path) -> None:
        folder = shared / "models" / "pixel_flux"
        model: Any = PixelFlux(folder, count) if part["case"] == "pixel_flux" else Unlike(part["case"], count)
        self._guidance = model.usual if part["guided"] else 1.0
        model.use(part["run"], self._guidance)
        self.pipe, self._asked, self._latents = model.pipe, getattr(model, "_captions", None), model._latents
        self._asked = self._asked or model._kinds
        self.pipe.set_progress_bar_config(disable=True)

    def make(self, places: Sequence[int]) -> Any:
        """What the pipeline returns for these captions."""
        asked = [self._asked[place] for place in places] if isinstance(self._asked, list) else self._asked[places]
        options = {"num_inference_steps": STEPS, "guidance_scale": self._guidance}
        return self.pipe(asked, latents=self._latents[places], **options)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``kept.json`` and show a table."""
    parser = parser_of("kept", __doc__, RUNS, prompts=20)
    parser.add_argument("--draws", type=int, default=2, help="of captions to tune on")
    parser.add_argument("--tolerances", nargs="+", type=float, default=list(TOLERANCES))
    parser.add_argument("--shared", type=Path, default=TOP.parent / "shared")
    options = parser.parse_args(arguments)
    show(record_of("kept", options, measure)["rows"], Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    runs = [(case, run) for case in options.case for run in RUNS[case]]
    for (case, run), guidance in track(list(itertools.product(runs, options.guidance)), "kept"):
        part = {"case": case, "run": run, "guided": guidance == "guided"}
        keys = [
            {**part, "tolerance": tolerance, "draw": draw}
            for tolerance, draw in itertools.product(options.tolerances, range(options.draws))
        ]
        if not (missing := [key for key in keys if not rows.like(key)]):
            continue
        model = Model(part, options.prompts + options.draws * JUDGED, options.shared)
        judged = list(range(options.prompts))
        full = model.make(judged)
        for key in missing:
            first = options.prompts + key["draw"] * JUDGED
            rows.add({**key, **tuned(model, key["tolerance"], range(first, first + JUDGED), judged, full)})


def tuned(model: Model, tolerance: float, drawn: Sequence[int], judged: Sequence[int], full: Any) -> Row:
    """The error of each judged caption after the drawn ones, computed steps on average, and what tuning says."""
    with (
        tempfile.TemporaryDirectory() as folder,
        cache_in(folder),
        omnireuse.enable(model.pipe, tolerance=tolerance) as handle,
    ):
        for place in drawn:
            model.make([place])
        tuning, errors, before = handle.tuning, [], len(handle.events)
        for number, place in enumerate(judged):
            errors += relative_errors(model.make([place]), full[number : number + 1])
        computed = len({(event.run, event.step) for event in handle.events[before:] if not event.reused})
    return {
        "errors": [round(error, 6) for error in errors],
        "computed": computed / len(judged),
        "runs": tuning.runs,
        "text": tuning.reason,
    }


def show(rows: Sequence[Row], console: Console) -> None:
    """For each part and tolerance: computed steps, the share of captions within it, the worst one as a multiple."""
    table = new_table("captions within the tolerance", "run", "tolerance", "computed", "within", "worst", "runs")
    kept = []
    for key in dict.fromkeys((row["case"], row["run"], row["guided"], row["tolerance"]) for row in rows):
        own = [row for row in rows if (row["case"], row["run"], row["guided"], row["tolerance"]) == key]
        errors = [error for row in own for error in row["errors"]]
        within = sum(error <= key[3] for error in errors) / len(errors)
        kept.append(within >= SHARE)
        table.add_row(
            f"{key[0]}, {key[1]}, {'guided' if key[2] else 'unguided'}",
            f"{key[3]:g}",
            ", ".join(f"{row['computed']:.1f}" for row in own),
            f"{within:.0%}{'' if within >= SHARE else '*'}",
            f"{max(errors) / key[3]:.2f}",
            ", ".join(f"{row['runs']:.1f}" for row in own),
        )
    console.print(table)
    console.print(f"kept in {sum(kept)} of {len(kept)} cases")


if __name__ == "__main__":
    main()
