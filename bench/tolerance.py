"""What `tolerance=` leaves in the final latents: the true relative L1 error of reuse against the full run.

    python -m bench tolerance [--case image video] [--guidance guided unguided] [--shift 1] [--out out/bench]

A tolerance is kept where the median over held-out captions lies between a third of it and the tolerance itself. The
scale of `ErrorControl` was chosen on clips with guidance; the other three cases judge it.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from rich.console import Console
from rich.progress import Progress

import omnireuse
from bench._common import new_table, write_record
from bench.few_steps import CASES, SEED, SHIFTS, shifted
from omnireuse.evaluation.record import environment
from reference.figures import explain

mpl.use("Agg")
from matplotlib import pyplot as plt

TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.2)
STEPS = 28

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``tolerance.json`` and a picture, and show a table."""
    parser = argparse.ArgumentParser(prog="python -m bench tolerance", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--guidance", nargs="+", choices=("guided", "unguided"), default=["guided", "unguided"])
    parser.add_argument("--shift", nargs="+", choices=SHIFTS, default=["1"])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--tolerances", nargs="+", type=float, default=list(TOLERANCES))
    parser.add_argument("--images", type=int, default=6, help="captions of images")
    parser.add_argument("--clips", type=int, default=4, help="captions of clips")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    kept = options.out / "tolerance.json"
    record: Row = json.loads(kept.read_text()) if kept.is_file() else {"rows": []}
    record |= {"command": "python -m bench tolerance", "environment": environment()}
    parts = list(itertools.product(options.case, options.guidance, options.shift))
    with Progress() as progress:
        task = progress.add_task("tolerance", total=len(parts) * len(options.tolerances))
        for case, guidance, shift in parts:
            part = {"case": case, "guided": guidance == "guided", "shift": shift, "steps": options.steps}
            player = Player(part, options.images if case == "image" else options.clips)
            for tolerance in options.tolerances:
                key = part | {"tolerance": tolerance}
                if not any(all(row[name] == value for name, value in key.items()) for row in record["rows"]):
                    record["rows"].append(key | player.play(tolerance))
                    write_record(record, options.out, "tolerance", quiet=True)
                progress.advance(task)
    show(record, Console())
    draw(record, options.out / "tolerance.png")


class Player:
    """One case: a pipeline at one shift, with guidance or without, and its captions."""

    def __init__(self, part: Row, prompts: int) -> None:
        self._case, self._steps = CASES[part["case"]], part["steps"]
        self._pipe: Any = self._case.load()
        self._pipe.set_progress_bar_config(disable=True)
        self._pipe.scheduler = shifted(self._pipe.scheduler.config, part["shift"])
        self._guidance = {} if part["guided"] else {self._case.guidance: 1.0}
        self._prompts = [self._case.caption(scene) for scene in self._case.held_out(prompts, seed=SEED)]
        self._full: torch.Tensor | None = None

    def play(self, tolerance: float) -> Row:
        """The error that this tolerance leaves in each caption's final latents, and what it computes."""
        if self._full is None:
            self._full = self._latents()
        with omnireuse.enable(self._pipe, tolerance=tolerance) as handle:
            made = self._latents()
            computed = [event for event in handle.events if not event.reused]
        axes = tuple(range(1, made.ndim))
        errors = (made - self._full).abs().sum(axes) / self._full.abs().sum(axes)
        return {"computed": len(computed) / len(self._prompts), "errors": errors.tolist()}

    def _latents(self) -> torch.Tensor:
        negative = {"negative_prompt": [self._case.sampling["negative_prompt"]] * len(self._prompts)}
        call = {**self._case.sampling, **negative, "num_inference_steps": self._steps, **self._guidance}
        generators = [torch.Generator().manual_seed(SEED + number) for number in range(len(self._prompts))]
        made = self._pipe(self._prompts, generator=generators, output_type="latent", **call)
        latents: torch.Tensor = getattr(made, self._case.output)
        return latents.double()


def is_kept(row: Row) -> bool:
    """Whether the median error lies between a third of the tolerance and the tolerance."""
    return bool(row["tolerance"] / 3 <= statistics.median(row["errors"]) <= row["tolerance"])


def words(row: Row) -> str:
    """What a case is called."""
    guidance = "guided" if row["guided"] else "unguided"
    return f"{'images' if row['case'] == 'image' else 'clips'}, {guidance}, shift {row['shift']}"


def show(record: Row, console: Console) -> None:
    """Median error, lowest and highest, over the tolerance; computed steps; what misses its band."""
    tolerances = sorted({row["tolerance"] for row in record["rows"]})
    title = "computed steps: median error (lowest–highest) for each tolerance; * outside of a third to one"
    table = new_table(title, "case", *(f"{each:g}" for each in tolerances))
    for case in dict.fromkeys(map(words, record["rows"])):
        own = {row["tolerance"]: row for row in record["rows"] if words(row) == case}
        cells = []
        for tolerance in tolerances:
            row = own.get(tolerance)
            if row is None:
                cells.append("–")
                continue
            middle, low, high = statistics.median(row["errors"]), min(row["errors"]), max(row["errors"])
            mark = "" if is_kept(row) else "*"
            cells.append(f"{row['computed']:.1f}: {middle:.4f}{mark} ({low:.4f}–{high:.4f})")
        table.add_row(case, *cells)
    console.print(table)
    kept = sum(map(is_kept, record["rows"]))
    console.print(f"kept in {kept} of {len(record['rows'])}")


def draw(record: Row, path: Path) -> None:
    """The true error against the tolerance, with the band it is held to."""
    figure, panel = plt.subplots(figsize=(5.2, 4.4), layout="constrained")
    tolerances = sorted({row["tolerance"] for row in record["rows"]})
    panel.fill_between(tolerances, [each / 3 for each in tolerances], tolerances, color="0.9", label="a third to one")
    for number, case in enumerate(dict.fromkeys(map(words, record["rows"]))):
        rows = sorted((row for row in record["rows"] if words(row) == case), key=lambda row: row["tolerance"])
        medians = [statistics.median(row["errors"]) for row in rows]
        panel.plot([row["tolerance"] for row in rows], medians, "o-", color=f"C{number}", ms=4, label=case)
    panel.set(xscale="log", yscale="log", xlabel="tolerance", ylabel="relative L1 error of the final latents, median")
    panel.legend(fontsize=8)
    explain(figure, "What a tolerance leaves: a line inside the grey band keeps it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
