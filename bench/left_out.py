"""The default on the reference pipelines that no constant was chosen on.

A U-Net that predicts noise, under three solvers, and a transformer with guidance distilled into it, at three shifts.

    python -m bench left_out [--case shapes-sd shapes-dev] [--guidance guided] [--budgets 14 9 7] [--out out/bench]

PSNR in dB to the full run of 28 steps of the same solver, for each held-out caption. Beside the default stand, with as
many computed steps, the last output held over the default's own steps and the solver with so many steps of its own.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench._common import new_table, no_warnings, write_record
from bench._few_steps_figures import budget_cell
from bench.few_steps import BUDGETS, Player, shifted
from omnireuse.evaluation.record import environment
from reference.case import CASES

SEED = 8800

Row = dict[str, Any]


def solver(name: str, **options: Any) -> Callable[[Any], Any]:
    """Makes a scheduler of diffusers from a pipeline's configuration."""

    def new(config: Any) -> Any:
        import diffusers

        return getattr(diffusers, name).from_config(config, **options)

    return new


SOLVERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "shapes-sd": {
        "DDIM": solver("DDIMScheduler"),
        "DPM++ 2M, Karras": solver("DPMSolverMultistepScheduler", use_karras_sigmas=True),
        "Euler, ancestral": solver("EulerAncestralDiscreteScheduler"),
    },
    "shapes-dev": {f"Euler, shift {shift}": partial(shifted, shift=shift) for shift in ("1", "3", "6")},
}


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``left_out.json`` and show a table."""
    parser = argparse.ArgumentParser(prog="python -m bench left_out", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=SOLVERS, default=list(SOLVERS))
    parser.add_argument("--guidance", nargs="+", choices=("guided", "unguided"), default=["guided", "unguided"])
    parser.add_argument("--budgets", nargs="+", type=int, default=list(BUDGETS), help="of 28 steps")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    with no_warnings():
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Run what is missing, and write and show the record."""
    kept = options.out / "left_out.json"
    record: Row = json.loads(kept.read_text()) if kept.is_file() else {"rows": []}
    record |= {"command": "python -m bench left_out", "environment": environment()}
    known = {(row["case"], row["solver"], row["guided"], row["budget"]) for row in record["rows"]}
    with Progress() as progress:
        parts = [part for case in options.case for part in itertools.product([case], SOLVERS[case], options.guidance)]
        task = progress.add_task("left out", total=len(parts) * len(options.budgets))
        players = {case: Player(CASES[case], options.prompts, seed=SEED) for case in options.case}
        for case, solver, guidance in parts:
            guided = guidance == "guided"
            player = players[case]
            player.use(SOLVERS[case][solver](player.config), guided=guided)
            for budget in options.budgets:
                if (case, solver, guided, budget) not in known:
                    key = {"case": case, "solver": solver, "guided": guided, "budget": budget}
                    record["rows"].append(key | player.budget(budget))
                    write_record(record, options.out, "left_out", quiet=True)
                progress.advance(task)
    show(record, Console())


def show(record: Row, console: Console) -> None:
    """The default at each budget, and how far it is above fewer steps and above holding."""
    rows = record["rows"]
    budgets = sorted({row["budget"] for row in rows}, reverse=True)
    table = new_table("default dB (above fewer steps; above holding) at so many of 28 steps", "run", *map(str, budgets))
    for part in dict.fromkeys((row["case"], row["solver"], row["guided"]) for row in rows):
        own = {row["budget"]: row for row in rows if (row["case"], row["solver"], row["guided"]) == part}
        name = f"{part[0]}, {part[1]}, {'guided' if part[2] else 'unguided'}"
        table.add_row(name, *(budget_cell(own.get(budget)) for budget in budgets))
    console.print(table)


if __name__ == "__main__":
    main()
